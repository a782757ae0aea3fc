"""Forms that say what is wrong where it is, and ask again before a rule that would surprise."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.apps import apps
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..identity.address import client_address
from ..identity.forwarded import parse_address, parse_network
from ..limits.rate import LimitError
from ..models import RateLimitOverride, RateLimitRule, RateLimitTier
from ..models.rate_fields import written
from ..models.rule import METHODS
from ..operations.surprises import NOTHING, override_surprises, surprises


def group_names() -> list[tuple[str, str]]:
    """Django's groups, as choices."""
    return [
        (name, name) for name in apps.get_model("auth", "Group").objects.order_by("name").values_list("name", flat=True)
    ]


def methods() -> list[tuple[str, str]]:
    """The usual methods, as choices."""
    return [(name, name) for name in METHODS]


def _names(given: Any) -> list[str]:
    """The names of a list, each once; none of what somebody has written there by hand."""
    return list(dict.fromkeys(name for name in given if isinstance(name, str))) if isinstance(given, list) else []


class RatesField(forms.CharField):
    """Further rates, one per line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, widget=forms.Textarea(attrs={"rows": 2, "cols": 20}), **kwargs)

    def prepare_value(self, value: Any) -> Any:
        """Lines for a list; what a browser sent, and what somebody has written into a row by hand, as it is."""
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        lines = (self.prepare_value(initial) or "").split() if isinstance(initial, (list, str)) else initial
        return bool(lines != (data or "").split())

    def to_python(self, value: Any) -> Any:
        """A list of rates as rules write them. Raises `ValidationError` that names the line."""
        rates = []
        for line in (super().to_python(value) or "").splitlines():
            if line.strip():
                try:
                    rates.append(written(line.strip()))
                except LimitError:
                    problem = _("“%(line)s” is no limit: write for example 500/h, or 10/15m. Units: s, m, h, d, w.")
                    raise ValidationError(problem % {"line": line.strip()}) from None
        return rates

    def validate(self, value: Any) -> None:
        """Whether they fit together is for the rule to say."""

    def run_validators(self, value: Any) -> None:
        """The same."""


SENTENCE = {"period": _("requests per"), "unit": _("unit of time")}
"""Labels in a row that reads as a sentence: Limit [100] requests per [1] [minutes]."""


def _further() -> RatesField:
    field = RateLimitRule._meta.get_field("more_rates")
    return RatesField(label=capfirst(field.verbose_name), help_text=field.help_text)


class RuleForm(forms.ModelForm):  # type: ignore[type-arg]
    """A rule. What would surprise has to be confirmed."""

    has_tiers = False
    """Whether its tiers are edited beside it."""

    more_rates = _further()
    methods = forms.MultipleChoiceField(
        label=_("Methods"), required=False, choices=methods,
        widget=forms.CheckboxSelectMultiple, help_text=_("None selected: all methods. GET includes HEAD."),
    )  # fmt: skip
    groups = forms.MultipleChoiceField(
        label=_("Groups"), required=False, widget=forms.CheckboxSelectMultiple, help_text=_(
            "For the audience “members of the groups below”."
        ),
    )  # fmt: skip
    confirm = forms.BooleanField(
        label=_("Confirm"), required=False,
        help_text=_("Only needed if a warning asks for it."),
    )  # fmt: skip

    class Meta:
        model = RateLimitRule
        fields = "__all__"
        labels = SENTENCE
        widgets = {  # noqa: RUF012 - Django's way
            "path": forms.Textarea(attrs={"rows": 3}),
            "description": forms.Textarea(attrs={"rows": 2}),
            "message": forms.Textarea(attrs={"rows": 2}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        self.instance.to_check = "without tiers" if self.has_tiers else "all"
        for field, names in (("name", "ratelimit-names"), ("group", "ratelimit-names"), ("route", "ratelimit-routes")):
            if field in self.fields:
                self.fields[field].widget.attrs["list"] = names
        if "name" in self.fields and self.instance.pk is None:
            self.fields["name"].widget.attrs["data-focus"] = "first"
        # Not where a rule may only be looked at.
        for field, present in (("groups", group_names), ("methods", methods)):
            if field in self.fields:
                named = getattr(self.instance, field)
                choices = present()
                # What the rule names already stays: by WebDAV and by other clients there are more methods than these.
                choices += [(name, name) for name in _names(named) if (name, name) not in choices]
                self.fields[field].choices = choices  # type: ignore[attr-defined]

    def clean_description(self) -> str:
        """Its lines as files have them."""
        return _lines(self.cleaned_data["description"])

    def clean_message(self) -> str:
        """Its lines as files have them."""
        return _lines(self.cleaned_data["message"])

    def clean(self) -> dict[str, Any]:
        """Raises `ValidationError` for what contradicts itself, and for what is surprising and not confirmed."""
        given: dict[str, Any] = super().clean() or {}
        if "path" not in self.fields:
            return given
        if given.get("audience") == "groups" and not given.get("groups"):
            self.add_error("groups", _("Select at least one group."))
        if given.get("limit") is None and not given.get("exempt"):
            self.add_error("limit", _("A rule needs a limit, unless it is exempt."))
        if not given.get("confirm"):
            _ask(self, surprises({**given, "rates": self._rates(given)}))
        return given

    def _rates(self, given: dict[str, Any]) -> list[str]:
        if given.get("limit") is None or not given.get("period") or not given.get("unit"):
            return []
        row = RateLimitRule(limit=given["limit"], period=given["period"], unit=given["unit"])
        return [str(row.rate), *given.get("more_rates", ())]


def _ask(form: Any, warnings: Sequence[tuple[str, Any]]) -> None:
    """Say what would surprise at its field, and how to say that it is meant."""
    for field, problem in warnings:
        form.add_error(
            field if field in form.fields else None,
            ValidationError([problem, _("If this is intended, tick “Confirm” below.")]),
        )


def _lines(text: str) -> str:
    """Text with line breaks as they are in files, and not as browsers send them: that would be a change."""
    return text.replace("\r\n", "\n")


class RowForm(forms.ModelForm):  # type: ignore[type-arg]
    """What of a rule can be changed in the list. Its fields say of which rule they are, for those who do not see it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.help_text = ""
            field.widget.attrs["aria-label"] = f"{field.label}: {self.instance}"

    def _post_clean(self) -> None:
        # A rule that is broken already locks neither the other rows nor the way to switch it off.
        is_switched_on = "mode" in self.changed_data and self.cleaned_data.get("mode") != "off"
        self.instance.to_check = "all" if is_switched_on else "nothing"
        super()._post_clean()  # type: ignore[misc]

    def _update_errors(self, errors: ValidationError) -> None:
        # What is wrong with fields that the list does not have is told where the rule is switched on.
        by_field: dict[str, list[Any]] = {}
        for field, problems in errors.update_error_dict({}).items():
            by_field.setdefault(field if field in self.fields else "mode", []).extend(problems)
        super()._update_errors(ValidationError(by_field))  # type: ignore[misc]


CONFIRMED = "enforce_confirmed"
"""What is sent where it was asked whether rules are to be enforced."""


class RowFormSet(forms.BaseModelFormSet):  # type: ignore[type-arg]
    """The rows of the list. `to_enforce`: rules of which it has to be asked first whether they are to be enforced."""

    to_enforce: Sequence[RateLimitRule] = ()

    def clean(self) -> None:
        """Raises `ValidationError` where rules would be enforced that were not, and nobody has confirmed it."""
        super().clean()
        if CONFIRMED in self.data or any(form.errors for form in self.forms):
            return
        switched = [form for form in self.forms if "mode" in form.changed_data]
        self.to_enforce = [form.instance for form in switched if form.cleaned_data["mode"] == "enforce"]
        if self.to_enforce:
            raise ValidationError("asked on a page of its own")


class TierFormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]
    """The tiers of a rule, which have to fit it as it is in the form, not as it was saved last."""

    def _construct_form(self, i: int, **kwargs: Any) -> Any:
        form = super()._construct_form(i, **kwargs)  # type: ignore[misc]
        form.instance.rule = self.instance
        return form


class TierForm(forms.ModelForm):  # type: ignore[type-arg]
    """A tier of a rule."""

    more_rates = _further()

    class Meta:
        model = RateLimitTier
        fields = ("group", "limit", "period", "unit", "more_rates", "burst")
        labels = SENTENCE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        present = group_names()
        own = self.instance.group
        removed = [(own, own)] if own and (own, own) not in present else []
        self.fields["group"] = forms.ChoiceField(label=_("Django group"), choices=[("", "—"), *present, *removed])

    def clean(self) -> dict[str, Any]:
        """Raises `ValidationError` for what is surprising and not confirmed in the form of the rule."""
        given: dict[str, Any] = super().clean() or {}
        rates = [f"{given.get('limit')}/", *(given.get("more_rates") or ())]
        if any(rate.startswith("0/") for rate in rates) and not self.data.get("confirm"):
            _ask(self, [("limit", NOTHING)])
        return given


DURATIONS = {
    "3600": _("for 1 hour"),
    "86400": _("for 1 day"),
    "604800": _("for 1 week"),
    "": _("until the end time below, or without end"),
}


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]
    """An override. The value of a field is turned into a digest at once."""

    value = forms.CharField(
        label=_("Value"), required=False, strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}, render_value=False),
        help_text=_("The value of the field, for example the API key itself. Only its digest is stored."),
    )  # fmt: skip
    duration = forms.ChoiceField(label=_("Duration"), required=False, choices=list(DURATIONS.items()))
    confirm = forms.BooleanField(
        label=_("Confirm"), required=False, help_text=_("Only needed if a warning asks for it.")
    )

    class Meta:
        model = RateLimitOverride
        fields = "__all__"
        labels = SENTENCE

    own_address: str | None = None
    own_proxy: str | None = None
    MOST_NETWORKS = 1000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        self.networks: list[str] = []
        if "network" in self.fields and self.instance.pk is None:
            self.fields["network"] = forms.CharField(
                label=self.fields["network"].label, required=False, widget=forms.Textarea(attrs={"rows": 2}),
                help_text=_(
                    "For example 203.0.113.9 or 2001:db8::/48. Several, one per line, become one override each."
                ),
            )  # fmt: skip
        if "duration" in self.fields:
            self.fields["duration"].initial = ""
        if "burst" in self.fields:
            self.fields["burst"].help_text = _("Only for token buckets. Empty: the burst of the rule.")
        for name in {"starts", "ends"} & set(self.fields):
            field = self.fields[name]
            for part, label in zip(getattr(field.widget, "widgets", ()), (_("date"), _("time")), strict=False):
                part.attrs["aria-label"] = f"{field.label}: {label}"

    def clean(self) -> dict[str, Any]:
        """Raises `ValidationError` for blocking oneself."""
        given: dict[str, Any] = super().clean() or {}
        value = given.get("value")
        if value and given.get("field"):
            self.instance.field = given["field"]
            self.instance.set_value(value)
        elif value:
            self.add_error("field", _("Enter the field that has this value, for example header:X-API-Key."))
        elif given.get("field") and given["field"] != self.initial.get("field"):
            self.instance.subject = ""
        if given.get("duration"):
            start = given.get("starts") or timezone.now()
            with suppress(OverflowError):  # Of the end of the calendar the model tells.
                given["ends"] = start + datetime.timedelta(seconds=int(given["duration"]))
        if given.get("effect") == "block":
            self._not_oneself(self.networks)
        if not given.get("confirm"):
            _ask(self, override_surprises({**given, "networks": self.networks}, self.own_proxy))
        return given

    def clean_network(self) -> str:
        """The first network; all are in `networks`. Raises `ValidationError` that names those that are none."""
        texts = list(dict.fromkeys(self.cleaned_data["network"].replace(",", " ").split()))
        wrong = [text for text in texts if not _is_network(text)]
        if wrong:
            listed = ", ".join(wrong[:10]) + (" …" if len(wrong) > 10 else "")
            problem = _("No address or network: %(texts)s. Write for example 203.0.113.9 or 203.0.113.0/24.")
            raise ValidationError(problem % {"texts": listed})
        if len(texts) > 1 and self.instance.pk is not None:
            raise ValidationError(_("This override is for one network. Add a new one for several."))
        if len(texts) > self.MOST_NETWORKS:
            raise ValidationError(_("Enter at most %(number)d networks at once.") % {"number": self.MOST_NETWORKS})
        self.networks = list(dict.fromkeys(str(parse_network(text)) for text in texts))
        return texts[0] if texts else ""

    def _not_oneself(self, networks: Sequence[str]) -> None:
        if self.own_address is not None and any(covers(network, self.own_address) for network in networks):
            self.add_error("network", _("This includes your own address: you would lock yourself out."))


def _is_network(text: str) -> bool:
    try:
        parse_network(text)
    except ValueError:
        return False
    return True


def covers(network: str, address: str) -> bool:
    """Whether an address is in a network, both as text; False for what is neither."""
    parsed = parse_address(address)
    try:
        return parsed is not None and parsed in parse_network(network)
    except ValueError:
        return False


def own_proxy(request: Any) -> str | None:
    """The address of the proxy that a request came through; None where it came through none, as far as it says."""
    came_through = {"HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED"} & request.META.keys()
    peer = parse_address(request.META.get("REMOTE_ADDR") or "") if came_through else None
    return None if peer is None else str(peer)


def own_address(request: Any) -> str | None:
    """The address a request comes from."""
    address = client_address(request).address
    return None if address is None else str(address)


UNITS = {"s": _("second"), "m": _("minute"), "h": _("hour"), "d": _("day")}


class PreviewForm(forms.Form):
    """What is to be sent, to see what a rule does to it."""

    preview_burst = forms.IntegerField(label=_("Requests at once"), min_value=0, max_value=100_000, required=False)
    preview_flow = forms.IntegerField(label=_("then, steadily"), min_value=0, max_value=1_000_000, required=False)
    preview_unit = forms.ChoiceField(label=_("per"), choices=list(UNITS.items()), required=False)
