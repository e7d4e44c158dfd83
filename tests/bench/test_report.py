"""The report: complete, self-contained, escaped, the same every time."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from statewell.bench.report import render, summary
from statewell.bench.results import mark_spread
from tests.bench.results_fixture import INVENTED, invented_results, invented_row

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, the text between them, and whether every tag is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def test_every_tag_is_closed_in_order():
    assert Page(render(invented_results())).open == []


def test_the_same_results_give_the_same_page():
    assert render(invented_results()) == render(invented_results())


def test_markup_from_outside_shows_as_text():
    hostile = "</pre><script>alert('x')</script><img src=x onerror=alert(1)>"
    results = invented_results()
    results["rows"][0]["samples"] = [{"prompt": hostile, "text": hostile}]
    results["rows"][1]["time_per_token"][0] = {"context": 256, "seconds": None, "note": hostile}
    results["command"] = f"statewell compare --data '{hostile}'"
    results["machine"]["cpu"] = hostile
    results["settings"]["data"]["source"] = hostile
    results["settings"]["match"] = "total"
    results["settings"]["changes"] = [hostile]
    page = Page(render(results))
    assert page.open == []
    assert not [tag for tag, _ in page.tags if tag in ("script", "img")]
    assert page.text.count("<script>alert('x')</script>") >= 7


def test_a_hostile_architecture_name_shows_as_text_everywhere():
    results = invented_results(("gpt2",))
    results["rows"][0]["arch"] = '"><script>'
    assert "<script" not in render(results)


def test_control_characters_and_reordering_marks_cannot_disturb_the_page():
    results = invented_results()
    results["rows"][0]["samples"] = [{"prompt": "a\x00\x07", "text": "b\u202ec\ud800d\x85"}]
    text = render(results).encode("utf-8").decode("utf-8")
    assert "a\u2400\u2407" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_the_page_asks_for_nothing_outside_itself():
    text = render(invented_results())
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "img", "iframe", "object", "embed", "base")]
    reaching = {"src", "href", "xlink:href", "action", "srcset", "data"}
    assert not [attributes for _, attributes in page.tags if reaching & set(attributes)]
    assert "://" not in text
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    policy = next(a for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_id_is_used_once():
    ids = re.findall(r' id="([^"]+)"', render(invented_results()))
    assert len(ids) == len(set(ids)) > 0


def test_all_rows_stand_in_the_table_and_at_the_lines():
    text = Page(render(invented_results())).text
    for name in ("GPT-2", "Linear attention", "DeltaNet", "Gated DeltaNet", "Kimi Linear", "Kimi K3"):
        assert text.count(name) >= 5
    assert "within the spread of Kimi K3" in text
    assert "past its limit" in text
    assert "1,024 positions" in text
    assert "0.012" in text


def test_measured_and_planned_memory_are_marked():
    text = Page(render(invented_results(("deltanet",)))).text
    assert "● 69.5 KiB" in text  # 1,024 and 32,768 tokens were run
    assert text.count("○ 69.5 KiB") == 1  # 1,048,576 were not


def test_colours_of_an_architecture_do_not_depend_on_which_rows_are_shown():
    alone = render(invented_results(("kimi_k3",)))
    assert 'class="key s5"' in alone
    assert 'class="key s0"' not in alone


@pytest.mark.parametrize("archs", [(), ("kimi_k3",), ("gpt2", "kimi_linear")])
def test_a_comparison_that_has_only_begun_can_be_drawn(archs):
    page = Page(render(invented_results(archs, seeds=1)))
    assert page.open == []
    assert f"{len(archs)} of 6 rows" in page.text


def test_a_row_without_curves_samples_or_times_can_be_drawn():
    results = invented_results(("gpt2", "deltanet"), seeds=1)
    for row in results["rows"]:
        row.update(
            curve=[],
            val_curve=[],
            samples=[],
            time_per_token=[],
            memory_curve=[],
            val_bits_per_byte_carried=None,
        )
    assert Page(render(results)).open == []


def test_the_summary_names_the_best_and_how_sure_that_is():
    results = invented_results()
    assert "Kimi K3 predicts held-out text best" in summary(results)
    assert "Kimi Linear cannot be told apart" in summary(results)
    assert "one seed" in summary(invented_results(seeds=1))
    assert "GPT-2 would need 2.0 GiB, though it stops at 1,024" in summary(results)


def test_rows_farther_apart_than_their_spreads_are_not_marked():
    near, far, alone = invented_row("kimi_k3"), invented_row("gpt2"), invented_row("deltanet", seeds=1)
    near["val_bits_per_byte"], near["spread"] = 2.0, 0.01
    far["val_bits_per_byte"], far["spread"] = 2.015, 0.02
    rows = [near, far, alone]
    mark_spread(rows)
    assert [row["within_spread_of"] for row in rows] == [["gpt2"], ["kimi_k3"], []]
    far["val_bits_per_byte"] = 2.03
    mark_spread(rows)
    assert [row["within_spread_of"] for row in rows] == [[], [], []]


def test_both_colour_schemes_define_the_same_variables():
    style = render(invented_results())
    light, dark = (
        set(re.findall(r"--[a-z0-9-]+(?=:)", block)) for block in re.findall(r":root \{([^}]*--page[^}]*)\}", style)
    )
    assert light == dark
    assert {f"--line-{index}" for index in range(len(INVENTED))} <= light
