"""Lists as YAML, and back: a module of its own, imported when it is used, as PyYAML takes long to
import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from ..rules.rule import RuleError
from .rules_yaml import MAX_TEXT_LENGTH

MAX_DEPTH = 20


class _Dumper(yaml.SafeDumper):
    """A `SafeDumper` that writes no aliases for lists that occur twice, because `read_items`
    refuses aliases.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    """A `SafeLoader` without aliases, which may stand for gigabytes, deep nesting, and keys that
    are given twice.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        problem = "this is nested too deeply" if self.depth > MAX_DEPTH else ""
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*) are not read; write it out"
        if problem:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, problem, mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key in [key for key, _value in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in keys:
                problem = f"{key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def dump_list(values: list[Any]) -> str:
    """Return a list as YAML."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_items(text: str, source: str) -> Iterator[tuple[int, Any]]:
    """Return the items of the YAML list in a text, each with the number of its first line.

    Raises `RuleError`.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise RuleError(source, "yaml", f"more than {MAX_TEXT_LENGTH} characters")
    try:
        loader = _Loader(text)
        node: Any = loader.get_single_node()
        if node is None:  # Probably a truncated file, and not the wish to delete every rule.
            raise RuleError(source, "yaml", "is empty; write [] where there are to be no rules")
        if not isinstance(node, yaml.SequenceNode):
            raise RuleError(source, "yaml", "must be a list of rules, each a mapping with a name")
        for item in node.value:
            yield item.start_mark.line + 1, loader.construct_document(item)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}, line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).replace("<unicode string>", source)
        raise RuleError(where, "yaml", f"not YAML: {problem}") from None
    except (ValueError, ArithmeticError) as error:  # A number or a date that is out of range.
        raise RuleError(source, "yaml", f"not YAML: {error}") from None
