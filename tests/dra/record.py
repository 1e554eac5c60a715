# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.dra.record` asks Kubernetes some hundred questions, and writes its answers for tests without Go."""

import json
import random

from tests.dra.oracle import ask, build
from tests.dra.questions import HERE, given_questions, random_questions

RECORDED = HERE / "recorded_cel.json"
SEED = 36


def record() -> int:
    """Write the questions with Kubernetes' answers, and return how many there are.

    Raises SystemExit without Go.
    """
    program = build()
    if isinstance(program, str):
        raise SystemExit(f"record: {program}")
    chance = random.Random(SEED)
    questions = [*given_questions(chance, devices=1), *random_questions(chance, 200)]
    answers = ask(program, questions, lists=True)
    lines = [
        json.dumps({**json.loads(question.line()), "answer": answer}, ensure_ascii=False, separators=(",", ":"))
        for question, answer in zip(questions, answers, strict=True)
    ]
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return len(lines)


if __name__ == "__main__":
    print(f"{RECORDED.name}: {record()} questions")
