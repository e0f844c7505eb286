"""JSON of the service as the dataclasses of `_models`. Fields that no model knows are ignored: a newer service keeps working."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, Dict, Hashable, List, Literal, Tuple, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ._errors import ClocheError

T = TypeVar("T")


def decode(kind: Type[T], value: object, where: str = "answer") -> T:
    """Raises ClocheError naming the field that is missing or of another type."""
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    fields = cast(Dict[str, object], value)
    decoded: Dict[str, Any] = {}
    for name, wire, hint, required in _fields_of(cast(Hashable, kind)):
        if wire in fields:
            decoded[name] = _value(hint, fields[wire], f"{where}.{wire}")
        elif required:
            raise ClocheError(f"the service's answer lacks {where}.{wire}; is it older than this client?")
    return kind(**decoded)


def decode_list(kind: Type[T], value: object, where: str) -> List[T]:
    if not isinstance(value, list):
        raise _wrong(where, "an array", value)
    return [decode(kind, one, f"{where}[{index}]") for index, one in enumerate(cast(List[object], value))]


@lru_cache(maxsize=None)
def _fields_of(kind: Hashable) -> List[Tuple[str, str, Any, bool]]:
    """Of each field: its name, its name on the wire, its type, whether it must be there."""
    model = cast(Type[Any], kind)
    hints = get_type_hints(model)
    missing = dataclasses.MISSING
    return [
        (
            field.name,
            field.name.rstrip("_"),  # `from` is a word of Python's
            hints[field.name],
            field.default is missing and field.default_factory is missing,
        )
        for field in dataclasses.fields(model)
    ]


def _value(hint: Any, value: object, where: str) -> object:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Union:
        if value is None:
            return None
        return _one_of([one for one in get_args(hint) if one is not type(None)], value, where)
    if origin is list:
        if not isinstance(value, list):
            raise _wrong(where, "an array", value)
        (element,) = get_args(hint)
        return [_value(element, one, f"{where}[{at}]") for at, one in enumerate(cast(List[object], value))]
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        element = get_args(hint)[1]
        return {key: _value(element, one, f"{where}.{key}") for key, one in cast(Dict[str, object], value).items()}
    if origin is Literal:
        hint = str  # a newer service may have more values
    if dataclasses.is_dataclass(hint):
        return decode(cast(Type[object], hint), value, where)
    return _plain(hint, value, where)


def _one_of(hints: List[Any], value: object, where: str) -> object:
    """The first that fits; the error is the last one's."""
    for hint in hints[:-1]:
        try:
            return _value(hint, value, where)
        except ClocheError:
            continue
    return _value(hints[-1], value, where)


def _plain(hint: Any, value: object, where: str) -> object:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number:
        return value
    if hint is int and number:
        if isinstance(value, int):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise _wrong(where, _WORDS.get(cast(object, hint), "a number"), value)


_WORDS: Dict[object, str] = {str: "text", bool: "true or false", int: "an integer"}


def _wrong(where: str, wanted: str, value: object) -> ClocheError:
    return ClocheError(f"the service's answer has {repr(value)[:100]} as {where}, which is not {wanted}")
