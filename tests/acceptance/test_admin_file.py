"""The file of rules in the admin: its changes are shown first, and applied after a confirmation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from django_ratelimit_lua.admin.rules_file import MAX_SHOWN, MAX_VALUE
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.operations.rules_yaml import export
from tests.acceptance import test_admin
from tests.acceptance.test_admin import RULES, staff, visits

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
FILE = f"{RULES}file/"


@pytest.fixture(autouse=True)
def rules(site: None) -> None:
    for name, limit in (("ok", 5), ("other", 7)):
        RateLimitRule.objects.create(name=name, path=f"/{name}", key="ip", rate=f"{limit}/h")


def looked_at(client: Client, text: str | bytes, missing: str = "delete") -> Any:
    file = SimpleUploadedFile("rules.yaml", text if isinstance(text, bytes) else text.encode())
    return client.post(FILE, {"file": file, "missing": missing})


def confirmed(client: Client, page: Any, **more: str) -> Any:
    """Submit the confirmation form of the page."""
    html = page.content.decode()
    values = {name: page.context["form"].initial[name] for name in ("text", "revision", "missing")}
    assert 'name="confirm"' in html
    return client.post(FILE, {**values, "confirm": "yes", **more}, follow=True)


def test_uploading_a_downloaded_file_changes_nothing(operator: Client) -> None:
    """The downloaded file is the output of `export`."""
    answer = operator.get(f"{FILE}rules.yaml")
    assert answer.content.decode() == export()
    assert "attachment" in answer["Content-Disposition"]
    assert f'href="{FILE}rules.yaml"' in operator.get(FILE).content.decode()
    assert f'href="{FILE}"' in operator.get(RULES).content.decode()
    assert (
        "Nothing: the rules already match the file"
        in looked_at(operator, answer.content).content.decode()
    )


def test_a_file_is_applied_after_its_changes_are_confirmed(operator: Client) -> None:
    """Old and new values are shown first. The change applies to the next request, and the history
    names the operator.
    """
    page = looked_at(operator, export().replace("5/h", "1/h"))
    assert "Rate: 5 per hour → 1 per hour" in page.content.decode()
    assert visits(2) == [200, 200]
    assert "It applies to the next request" in confirmed(operator, page).content.decode()
    assert visits() == [429]
    assert RateLimitChange.objects.all()[0].by == "grace"


def test_rules_missing_in_a_file_are_deleted_only_if_confirmed(operator: Client) -> None:
    """The deletion needs a user with the permission to delete rules."""
    text = export()
    cut = text[: text.index("- name: other")]
    page = looked_at(operator, cut)
    assert "- other: 7 per hour" in page.content.decode()
    assert (
        "tick the box if the warnings and deletions are intended"
        in confirmed(operator, page).content.decode()
    )
    assert export() == text
    may_change = staff(
        "view_ratelimitrule", "add_ratelimitrule", "change_ratelimitrule", name="changes"
    )
    theirs = looked_at(may_change, cut)
    assert "you do not have the permission to delete rules" in theirs.content.decode()
    assert confirmed(may_change, theirs, intended="on").status_code == 403
    assert export() == text
    confirmed(operator, page, intended="on")
    assert export() == cut


@pytest.mark.parametrize("missing", ["keep", ""])
def test_a_file_is_merged_unless_rules_are_to_be_replaced(missing: str, operator: Client) -> None:
    """Rules that are not in the file stay, so no permission to delete is needed."""
    rule = "- {name: third, path: /third, key: ip, rate: 3 per hour}"
    may_change = staff(
        "view_ratelimitrule", "add_ratelimitrule", "change_ratelimitrule", name="merges"
    )
    page = looked_at(may_change, rule, missing)
    html = page.content.decode()
    assert "1 change." in html
    assert "+ third: 3 per hour per address, on /third" in html
    assert "- other" not in html
    assert "It applies to the next request" in confirmed(may_change, page).content.decode()
    names = RateLimitRule.objects.order_by("name").values_list("name", flat=True)
    assert list(names) == ["ok", "other", "third"]
    again = looked_at(operator, rule, missing)
    assert "the rules already match the file" in again.content.decode()
    assert "- other: 7 per hour" in looked_at(operator, rule).content.decode()


def test_a_long_file_shows_its_first_changes_and_the_number_of_all(operator: Client) -> None:
    """Changes with warnings come first."""
    lines = [f"- {{name: r{n}, path: /r{n}, key: ip, rate: 1/h}}" for n in range(MAX_SHOWN + 4)]
    lines.append("- {name: wide, path: /wide, key: ip, rate: 0/h}")
    page = looked_at(operator, "\n".join(lines), "keep")
    html = page.content.decode()
    assert f"{MAX_SHOWN + 5} changes." in html
    assert "And 5 more changes." in html
    assert html.count("<div>+ ") == MAX_SHOWN
    assert html.index("+ wide") < html.index("+ r0")
    answer = confirmed(operator, page, intended="on").content.decode()
    assert f"{MAX_SHOWN + 5} rules now match the file." in answer


def test_unexpected_effects_of_a_file_have_to_be_confirmed(operator: Client) -> None:
    """Warnings are confirmed as in the form. An effect that a rule already has causes no
    warning.
    """
    text = export()
    wide = text.replace("rate: 5/h", "rate: 5/h\n  cost: 8")
    page = looked_at(operator, wide)
    assert "refuses every request that the rule applies to." in page.content.decode()
    assert (
        "tick the box if the warnings and deletions are intended"
        in confirmed(operator, page).content.decode()
    )
    assert export() == text
    confirmed(operator, page, intended="on")
    assert export() == wide
    again = looked_at(operator, wide.replace("5/h", "4/h"))
    assert "refuses every request" not in again.content.decode()
    confirmed(operator, again)
    assert "rate: 4/h" in export()


def test_a_file_is_shown_again_if_rules_have_changed_since_its_preview(operator: Client) -> None:
    """If another user has changed a rule in the meantime, the changes are shown again."""
    page = looked_at(operator, export().replace("5/h", "1/h"))
    RateLimitRule.objects.filter(name="other").update(rate="8/h")
    answer = confirmed(operator, page)
    assert "The rules were changed in the meantime" in answer.content.decode()
    assert "Rate: 8 per hour → 7 per hour" in answer.content.decode()
    assert "rate: 5/h" in export()
    confirmed(operator, answer)
    assert "rate: 1/h" in export()
    assert "rate: 7/h" in export()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["The submitted file is empty"]),
        ("# nothing\n", ["is empty; write []"]),
        (b"\xff", ["not text in UTF-8"]),
        ("#" * (MAX_VALUE + 1), ["larger than 2 MiB"]),
        (
            "- {name: a, key: id, rate: 5/m, path: /}\n- 5",
            ["line 1: rule", "Unknown key", "line 2: 5 is not a rule"],
        ),
        ("- {name: <b>, key: id, rate: 5/m, path: /}", ["&lt;b&gt;"]),
    ],
)
def test_all_errors_of_a_file_are_reported_and_nothing_is_imported(
    text: str | bytes, problems: list[str], operator: Client
) -> None:
    """Each error has its line."""
    before = export()
    html = looked_at(operator, text).content.decode()
    assert [problem for problem in problems if problem not in html] == []
    assert 'name="confirm"' not in html
    assert "Choose a file." in operator.post(FILE, {}).content.decode()
    assert export() == before


def test_a_user_with_view_permission_may_only_download() -> None:
    """The upload is refused, and a user without the permission to view rules gets a 403."""
    looks, nobody = staff("view_ratelimitrule", name="looks"), staff(name="nobody")
    assert looks.get(f"{FILE}rules.yaml").content.decode() == export()
    assert not re.search('type="file"', looks.get(FILE).content.decode())
    assert looked_at(looks, "[]").status_code == 403
    assert nobody.get(FILE).status_code == nobody.get(f"{FILE}rules.yaml").status_code == 403
