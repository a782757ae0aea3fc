"""Reads lists from YAML. PyYAML is slow to import, so this module is imported when needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from ..rules import RuleError

_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Reads YAML without aliases, which may expand to gigabytes, and with the types of JSON.

    So `off`, `no`, `2026-01-01` and `1:30` are text, and explicit tags have no effect.
    """

    yaml_constructors = {}  # noqa: RUF012 - an attribute of the instance for mypy

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*) are not supported; write the value again"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        if node.tag == _TEXT:
            return node.value
        try:
            return json.loads(node.value)
        except ValueError:
            return node.value or None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys, and read a number of slots (`rate: 5`) as text."""
        names = set()
        for key, value in node.value:
            name = str(key.value)
            if name in names:
                problem = f"{name!r} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(name)
            if name == "rate":
                value.tag = _TEXT
        return super().construct_mapping(node, deep)


def read_items(text: str, source: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of the YAML list in a text, each with its place: the source and the line.

    Raises:
        RuleError: The text is not a YAML list.
    """
    where = source
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:  # Probably a truncated file, and not the wish to delete every rule.
            raise RuleError("yaml", "is empty; write [] for no rules", where=source)
        if not isinstance(node, yaml.SequenceNode):
            problem = "must be a list of rules, each a mapping with a name"
            raise RuleError("yaml", problem, where=source)
        for item in node.value:
            where = f"{source}, line {item.start_mark.line + 1}"
            yield where, loader.construct_document(item)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            where = f"{source}, line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).replace("<unicode string>", source)
        raise RuleError("yaml", f"not YAML: {problem}", where=where) from None
