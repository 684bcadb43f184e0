"""The tables of docs/rules.md, from the study of rules for logits."""

from __future__ import annotations

from specdec.studies.pages.tables import SUMMARY, Section, Table, spread

_STUDY = ["results/rules/summary.json"]
_NAMES = {
    "plain": "plain", "speculative": "γ = 3", "without": "nothing",
    "penalty": "repetition penalty", "trie": "trie", "log_probs": "log-probabilities",
    "top_log_probs": "5 alternatives, too",
}  # fmt: skip
_TIMES = ("", "{pair}, {method}")


def _both(title: str, form: str) -> list[tuple[str, str]]:
    """A column for a draft that follows the rules, and one for a draft that does not."""
    return [(title, form.replace("%", "following")), ("without", form.replace("%", "apart"))]


SECTIONS = {
    "costs": Section(_STUDY, [
        Table("rules/{pair}/costs/{method}/ways/{way}", [
            _TIMES, ("with", "{way}"), ("ms per block", spread("ms_per_block")),
            ("over nothing", spread("over")), ("texts that differ", "{differ}"),
        ], names=_NAMES),
        SUMMARY,
    ]),
    "streaming": Section(_STUDY, [
        Table("rules/{pair}/stream/{method}", [
            _TIMES, ("tokens", "{num_tokens}"), ("pieces", "{pieces}"),
            ("ms per token, `generate`", spread("ms_per_token[whole]")),
            ("`stream`", spread("ms_per_token[streamed]")),
            ("`stream` / `generate`", spread("over")), ("texts that differ", "{differ}"),
        ], names=_NAMES),
        SUMMARY,
    ]),
    "drafts": Section(_STUDY, [
        Table("rules/drafts/t{temperature}/{slug}", [
            ("", "{rule}"), ("temperature", "{temperature}"),
            *_both("α", "{%[alpha]:.3f}"),
            *_both("tokens per block", "{%[block_efficiency]:.2f}"),
            *_both("speedup", spread("%[speedup]")),
        ]),
        SUMMARY,
    ]),
    "samples": Section(_STUDY, [
        Table("rules/samples/{slug}", [
            ("", "{rule}"), ("degrees of freedom", "{ways[chain][freedom]}"),
            ("p, γ = 3", "{ways[chain][p]:.2g}"),
            ("draft does not follow", "{ways[apart][p]:.2g}"),
            ("plain, without the rule", "{ways[without][p]:.0e}"),
        ]),
        SUMMARY,
    ]),
}  # fmt: skip
