# SPDX-License-Identifier: Apache-2.0
"""Random selectors: mostly well typed, now and then with a wrong type, an unknown name or broken syntax."""

import json
import random

from tests.dra.facts import CAPACITIES, DOMAINS, INTEGERS, NAMES, QUANTITIES, STRINGS, VERSIONS

ATTRIBUTES = {
    "string": ("type", "productName", "uuid"),
    "int": ("index",),
    "bool": ("healthy", "rdma"),
    "version": ("version", "driverVersion"),
}
PATTERNS = (
    "^NVIDIA.*",
    "h100",
    "(?i)H100",
    "a|b",
    "[0-9]+GB",
    r"\\bA100\\b",
    "^$",
    "(",
    "x{2,1}",
    "[[:alpha:]]+",
    r"\\d",
    "ö",
)
SETS = ("contains", "intersects", "equivalent")
ORDERS = ("<", "<=", ">", ">=", "==", "!=")


class Maker:
    """Makes one expression; `names` are the variables of the macros around, by their type."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.names: list[tuple[str, str]] = []

    def selector(self) -> str:
        """Make a selector."""
        text = self.boolean(self.chance.choice((1, 2, 2, 3, 3, 4)))
        return self._broken(text) if self.chance.random() < 0.03 else text

    def _broken(self, text: str) -> str:
        index = self.chance.randrange(len(text) or 1)
        return text[:index] + self.chance.choice(("", "?", ")", "'", "&", ".")) + text[index + 1 :]

    def quote(self, text: str) -> str:
        """Write a string literal."""
        quoted = json.dumps(text, ensure_ascii=False)
        return quoted if self.chance.random() < 0.5 or "'" in text else "'" + quoted[1:-1] + "'"

    def domain(self) -> str:
        """Make the map of a domain's attributes."""
        views = [name for name, kind in self.names if kind == "domain"]
        if views and self.chance.random() < 0.7:
            return self.chance.choice(views)
        optional = "?" if self.chance.random() < 0.03 else ""
        return f"device.attributes[{optional}{self.quote(self.chance.choice(DOMAINS))}]"

    def attribute(self, kind: str) -> str:
        """Make the lookup of an attribute, usually of a type."""
        name = self.chance.choice(NAMES if self.chance.random() < 0.08 else ATTRIBUTES[kind])
        if self.chance.random() < 0.04:
            name = "missing"
        if self.chance.random() < 0.07:
            return f"{self.domain()}[{self.quote(name)}]"
        return f"{self.domain()}.{name}"

    def capacity(self) -> str:
        """Make the lookup of a capacity."""
        name = "missing" if self.chance.random() < 0.04 else self.chance.choice(CAPACITIES)
        return f"device.capacity[{self.quote(self.chance.choice(DOMAINS[:4]))}].{name}"

    def variable(self, kind: str) -> str | None:
        """Choose a variable of a type, if there is one."""
        fitting = [name for name, its_kind in self.names if its_kind == kind]
        return self.chance.choice(fitting) if fitting and self.chance.random() < 0.5 else None

    def value(self, kind: str, depth: int) -> str:
        """Make an expression of a type; now and then one of another."""
        if self.chance.random() < 0.03:
            kind = self.chance.choice(("string", "int", "bool", "version", "quantity"))
        makers = {
            "string": self.string,
            "int": self.integer,
            "bool": self.boolean,
            "version": self.version,
            "quantity": self.quantity,
        }
        return self.variable(kind) or makers[kind](depth)

    def string(self, depth: int) -> str:
        """Make a string."""
        if depth <= 0 or self.chance.random() < 0.35:
            return self.chance.choice(
                (self.quote(self.chance.choice(STRINGS)), self.attribute("string"), "device.driver")
            )
        inner = self.value("string", depth - 1)
        number = str(self.chance.choice((0, 1, 2, 5, -1, 40)))
        text = self.quote(self.chance.choice((*STRINGS, " ", "a", "0", "-")))
        return self.chance.choice(
            (
                f"{inner}.lowerAscii()",
                f"{inner}.upperAscii()",
                f"{inner}.replace({text}, {self.value('string', 0)})",
                f"{inner}.replace({text}, 'x', {number})",
                f"{inner}.substring({number})",
                f"{inner}.substring({number}, {self.value('int', depth - 2)})",
                f"{inner}.charAt({number})",
                f"{inner}.trim()",
                f"{inner}.split({text}).join('-')",
                f"{inner}.split({text}, {number}).join()",
                f"{inner}.find({self.quote(self.chance.choice(PATTERNS[:6]))})",
                f"({inner} + {text})",
                f"string({self.value('int', depth - 1)})",
                f"({self.boolean(depth - 2)} ? {inner} : {text})",
                f"{self.domain()}.?{self.chance.choice(NAMES)}.orValue({text})",
            )
        )

    def integer(self, depth: int) -> str:
        """Make an integer."""
        if depth <= 0 or self.chance.random() < 0.35:
            return self.chance.choice(
                (str(self.chance.choice(INTEGERS)), self.attribute("int"), str(self.chance.randrange(9)))
            )
        text = self.value("string", depth - 1)
        left, right = self.value("int", depth - 1), self.value("int", depth - 1)
        return self.chance.choice(
            (
                f"({left} {self.chance.choice('+-*/%')} {right})",
                f"-({left})",
                f"size({text})",
                f"{text}.size()",
                f"{text}.indexOf({self.value('string', 0)})",
                f"{text}.lastIndexOf('a')",
                f"{text}.indexOf('0', {self.chance.randrange(-1, 9)})",
                f"int({text})",
                f"int({left})",
                f"{self.version(depth - 1)}.{self.chance.choice(('major', 'minor', 'patch'))}()",
                f"{self.quantity(depth - 1)}.compareTo({self.quantity(depth - 1)})",
                f"{self.version(depth - 1)}.compareTo({self.version(depth - 1)})",
                f"{self.quantity(depth - 1)}.asInteger()",
                f"sign({self.quantity(depth - 1)})",
                f"[{left}, {right}].{self.chance.choice(('min', 'max', 'sum'))}()",
                f"{self.collection()}.size()",
                f"[{left}, {right}, 3].indexOf({right})",
            )
        )

    def collection(self) -> str:
        """Make a map."""
        return self.chance.choice(
            (self.domain(), "device.attributes", "device.capacity", "device.capacity['gpu.nvidia.com']")
        )

    def version(self, depth: int) -> str:
        """Make a version."""
        if self.chance.random() < 0.5:
            return self.attribute("version")
        if self.chance.random() < 0.2:
            return (
                f"semver({self.quote(self.chance.choice(('v1.2', '01.02.03', '9', '1.2.3', 'v08.0.0-x', '')))}, true)"
            )
        if depth > 0 and self.chance.random() < 0.15:
            return f"semver({self.value('string', depth - 1)})"
        return f"semver({self.quote(self.chance.choice((*VERSIONS, '1.2', 'x')))})"

    def quantity(self, depth: int) -> str:
        """Make a quantity."""
        if self.chance.random() < 0.5:
            return self.capacity()
        if depth > 0 and self.chance.random() < 0.3:
            other = self.value(self.chance.choice(("int", "quantity")), depth - 1)
            return f"{self.quantity(depth - 1)}.{self.chance.choice(('add', 'sub'))}({other})"
        return f"quantity({self.quote(self.chance.choice((*QUANTITIES, '0.1n', '5.', '.5', '1Zi', '10E', '1E2')))})"

    def boolean(self, depth: int) -> str:
        """Make a condition."""
        if depth <= 0:
            return self.chance.choice((self._simple, self._comparison))(0)
        heavy = (self._logic, self._logic, self._macro, self._bind, self._membership, self._texts, self._ordered)
        return self.chance.choice((*heavy, self._comparison, self._comparison, self._simple))(depth)

    def _simple(self, depth: int) -> str:
        return self.chance.choice(
            (
                self.attribute("bool"),
                f"has({self.domain()}.{self.chance.choice((*NAMES, 'missing'))})",
                f"{self.quote(self.chance.choice(NAMES))} in {self.domain()}",
                f"{self.quote(self.chance.choice(DOMAINS))} in device.{self.chance.choice(('attributes', 'capacity'))}",
                f"has(device.capacity['gpu.nvidia.com'].{self.chance.choice(CAPACITIES)})",
                f"device.driver == {self.quote(self.chance.choice(DOMAINS))}",
                "device.allowMultipleAllocations",
                self.chance.choice(("true", "false", "!true", "null == null")),
                f"{self.domain()}.?{self.chance.choice(NAMES)}.hasValue()",
                f"isSemver({self.value('string', depth)})",
                f"isQuantity({self.value('string', depth)})",
                f"{self.quantity(0)}.isInteger()",
                self.variable("bool") or "true",
                f"type({self.attribute('string')}) == {self.chance.choice(('string', 'int', 'bool'))}",
                f"has({self.attribute('string')}.x)",
            )
        )

    def _comparison(self, depth: int) -> str:
        kind = self.chance.choice(("string", "int", "int", "bool", "version", "quantity"))
        operator = self.chance.choice(ORDERS[4:] if kind in ("version", "quantity", "bool") else ORDERS)
        left, right = self.value(kind, depth - 1), self.value(kind, depth - 1)
        if kind == "int" and self.chance.random() < 0.1:
            right = self.chance.choice(("2.0", "1.5", "3u", "9007199254740992.0", "uint(2)", "double(3)", "null"))
        return f"{left} {operator} {right}" if depth <= 0 else f"({left} {operator} {right})"

    def _ordered(self, depth: int) -> str:
        kind = self.chance.choice(("version", "quantity"))
        method = self.chance.choice(("isGreaterThan", "isLessThan", "compareTo", "compareTo"))
        call = f"{self.value(kind, depth - 1)}.{method}({self.value(kind, depth - 1)})"
        return (
            f"{call} {self.chance.choice(ORDERS)} {self.chance.choice((0, 0, 0, 1, -1))}"
            if method == "compareTo"
            else call
        )

    def _logic(self, depth: int) -> str:
        parts = [self.boolean(depth - 1) for _ in range(self.chance.choice((2, 2, 3)))]
        joined = self.chance.choice((" && ", " || ")).join(f"({part})" for part in parts)
        return self.chance.choice((joined, joined, f"!({parts[0]})", f"({parts[0]}) ? ({parts[1]}) : ({parts[-1]})"))

    def _membership(self, depth: int) -> str:
        kind = self.chance.choice(("string", "int", "version"))
        count = self.chance.choice((0, 1, 2, 3))
        literals = {
            "string": lambda: self.quote(self.chance.choice(STRINGS)),
            "int": lambda: str(self.chance.choice(INTEGERS)),
            "version": lambda: self.quote(self.chance.choice(VERSIONS)),
        }
        items = [literals[kind]() if self.chance.random() < 0.8 else self.value(kind, depth - 1) for _ in range(count)]
        return f"{self.value(kind, depth - 1)} in [{', '.join(items)}]"

    def _texts(self, depth: int) -> str:
        text = self.value("string", depth - 1)
        pattern = self.quote(self.chance.choice(PATTERNS)).replace("\\\\\\\\", "\\\\")
        part = self.value("string", 0)
        method = self.chance.choice(("startsWith", "endsWith", "contains"))
        return self.chance.choice(
            (f"{text}.matches({pattern})", f"matches({text}, {pattern})", f"{text}.{method}({part})")
        )

    def _bind(self, depth: int) -> str:
        if self.chance.random() < 0.6:
            kind, value = "domain", self.domain()
        else:
            kind = self.chance.choice(("string", "int", "version", "quantity", "bool"))
            value = self.value(kind, depth - 1)
        return f"cel.bind({self._within('b', kind)}, {value}, {self._inside(depth)})"

    def _within(self, prefix: str, kind: str) -> str:
        self.names.append((f"{prefix}{len(self.names)}", kind))
        return self.names[-1][0]

    def _inside(self, depth: int) -> str:
        inner = self.boolean(depth - 1)
        self.names.pop()
        return inner

    def _macro(self, depth: int) -> str:
        macro = self.chance.choice(("all", "exists", "exists_one", "existsOne"))
        if self.chance.random() < 0.4:
            collection = self.collection()
            if self.chance.random() < 0.3:
                return f"{collection}.{macro}({self._within('k', 'string')}, _v, {self._inside(depth)})"
            return f"{collection}.{macro}({self._within('k', 'string')}, {self._inside(depth)})"
        kind = self.chance.choice(("string", "int"))
        items = f"[{self.value(kind, 0)}, {self.value(kind, 0)}]"
        name = self._within("x", kind)
        inner = self._inside(depth)
        return self.chance.choice(
            (
                f"{items}.{macro}({name}, {inner})",
                f"{items}.filter({name}, {inner}).size() > 0",
                f"{items}.map({name}, {inner}).exists(y, y)",
                f"sets.{self.chance.choice(SETS)}({items}, {items}.map({name}, {name}))",
            )
        )
