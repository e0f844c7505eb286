"""What a case expects of an answer, compared with what came (spec/cases/README.md, What is expected)."""

import json
import re
import time
from datetime import datetime

TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")
ABSENT = object()
"""Stands for a field that is not there."""


def mismatches(expected, actual, at="json"):
    """Where `actual` differs from `expected`, one line each."""
    if isinstance(expected, dict) and expected and all(key.startswith("$") for key in expected):
        return [line for name, argument in expected.items() for line in _matcher(name, argument, actual, at)]
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return [f"{at}: expected an array, got {_show(actual)}"]
        if len(actual) != len(expected):
            return [f"{at}: expected {len(expected)} elements, got {len(actual)}: {_show(actual)}"]
        pairs = enumerate(zip(expected, actual))
        return [line for index, (one, got) in pairs for line in mismatches(one, got, f"{at}[{index}]")]
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return [f"{at}: expected an object, got {_show(actual)}"]
        fields = expected.items()
        return [line for key, one in fields for line in mismatches(one, actual.get(key, ABSENT), f"{at}.{key}")]
    same = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    return [] if same else [f"{at}: expected {_show(expected)}, got {_show(actual)}"]


def _matcher(name, argument, actual, at):
    def unless(fine, wanted):
        return [] if fine else [f"{at}: expected {wanted}, got {_show(actual)}"]

    number = isinstance(actual, (int, float)) and not isinstance(actual, bool)
    if name == "$type":
        return unless(_is(actual, argument), f"a value of type {argument}")
    if name == "$match":
        return unless(isinstance(actual, str) and re.search(_python(argument), actual), f"text that matches {argument}")
    if name == "$includes":
        return unless(isinstance(actual, str) and str(argument) in actual, f"text with {argument!r} in it")
    if name == "$timestamp":
        return unless(isinstance(actual, str) and _is_timestamp(actual), "a RFC 3339 timestamp in UTC with milliseconds")
    if name == "$min":
        return unless(number and actual >= argument, f"at least {argument}")
    if name == "$max":
        return unless(number and actual <= argument, f"at most {argument}")
    if name == "$any_of":
        return unless(any(not mismatches(one, actual) for one in argument), f"one of {_show(argument)}")
    if name == "$not":
        return unless(mismatches(argument, actual), f"not {_show(argument)}")
    if name == "$absent":
        return unless(actual is ABSENT, "no such field")
    if name == "$some":
        wanted = argument if isinstance(argument, list) else [argument]
        there = actual if isinstance(actual, list) else []
        missing = [one for one in wanted if all(mismatches(one, got) for got in there)]
        return unless(not missing, f"an array with {_show(missing)} in it")
    if name == "$every":
        if not isinstance(actual, list):
            return unless(False, "an array")
        return [line for index, one in enumerate(actual) for line in mismatches(argument, one, f"{at}[{index}]")]
    if name == "$length":
        return mismatches(argument, len(actual), f"{at}.length") if isinstance(actual, (str, list)) else unless(False, "a length")
    if name == "$exactly":
        fine = isinstance(actual, dict) and sorted(actual) == sorted(argument)
        return unless(fine, f"exactly the fields {', '.join(argument)}") + mismatches(argument, actual, at)
    if name == "$all":
        return [line for one in argument for line in mismatches(one, actual, at)]
    if name == "$seconds_from_now":
        return unless(number and abs(actual - time.time() - argument) <= 30, f"Unix seconds about {argument} s from now")
    raise ValueError(f"{at}: {name} is no matcher; spec/cases/README.md lists them")


def _is(value, kind):
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    kinds = {"null": type(None), "array": list, "object": dict, "string": str, "boolean": bool}
    return isinstance(value, kinds[kind])


def _is_timestamp(text):
    if not TIMESTAMP.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text[:-1])
    except ValueError:
        return False
    return True


def _python(pattern):
    """A pattern of JavaScript's: its names of groups and of properties are written otherwise."""
    return re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda found: chr(int(found[1], 16)), pattern).replace("(?<", "(?P<").replace(
        "(?P<=", "(?<="
    ).replace("(?P<!", "(?<!")


def _show(value):
    text = "nothing" if value is ABSENT else json.dumps(value, default=repr)
    return text if len(text) <= 300 else f"{text[:300]}…"
