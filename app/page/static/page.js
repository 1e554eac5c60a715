// SPDX-License-Identifier: Apache-2.0
// What makes the page live: filters without a reload, and events of the server. All of it can be read without.
"use strict";
