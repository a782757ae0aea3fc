"""Lists as YAML, and back. PyYAML is slow to import, so this module is imported when needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from ..rules.rule import RuleError
from .rules_yaml import MAX_TEXT_LENGTH


class _Dumper(yaml.SafeDumper):
    """Writes lists that occur twice without aliases, because `read_items` refuses aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_NARROWED = {f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "timestamp")}


class _Loader(yaml.SafeLoader):
    """Reads YAML without aliases, which may expand to gigabytes, and without explicit tags.

    As in YAML 1.2, `off`, `no`, `2026-01-01` and `1:30` are text.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - an attribute of the instance for mypy
        letter: [(tag, form) for tag, form in resolvers if tag not in _NARROWED]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _error("aliases (*) are not supported; write the value again", event)
        if getattr(event, "tag", None) is not None:
            raise _error("tags (!) are not supported; write the value without it", event)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), [*"tTfF"]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), [*"-+0123456789"]
)


def dump_list(values: Sequence[object]) -> str:
    """Return a list as YAML."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_items(text: str, source: str) -> Iterator[tuple[int, object]]:
    """Return the items of the YAML list in a text, each with the number of its first line.

    Raises:
        RuleError: The text is too large, or is not a YAML list.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise RuleError(source, "yaml", f"the text has more than {MAX_TEXT_LENGTH} characters")
    where = source
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:  # Probably a truncated file, and not the wish to delete every rule.
            raise RuleError(source, "yaml", "is empty; write [] for no rules")
        if not isinstance(node, yaml.SequenceNode):
            raise RuleError(source, "yaml", "must be a list of rules, each a mapping with a name")
        _check_keys(node)
        for item in node.value:
            line = item.start_mark.line + 1
            where = f"{source}, line {line}"
            yield line, loader.construct_document(item)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            where = f"{source}, line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).replace("<unicode string>", source)
        raise RuleError(where, "yaml", f"not YAML: {problem}") from None
    except RecursionError:
        raise RuleError(source, "yaml", "not YAML: nested too deeply") from None
    except (ValueError, ArithmeticError) as error:  # A number that is out of range.
        raise RuleError(where, "yaml", f"not YAML: {error}") from None


def _check_keys(root: yaml.Node) -> None:
    """Refuse duplicate keys, and keys that are lists or mappings."""
    nodes = [root]
    for node in nodes:
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _error("a key must be a name, not a list or a mapping", key)
                if key.value in keys:
                    raise _error(f"{key.value!r} is given twice", key)
                keys.add(key.value)
                nodes.append(value)


def _error(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
