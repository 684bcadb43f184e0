"""Corpus scores from rows one after another."""

import itertools

import pytest
import sacrebleu

from specdec.measure.quality import Quality, TaskQuality

OUTPUTS = ["the cat sat on the mat", "a dog", "", "Zwei Äpfel, bitte.", "one two three four five"]
REFERENCES = ["the cat sat on a mat", "the dog barks", "x", "Zwei Äpfel bitte!", "one two three"]


def scored(scorer, times=1):
    for _ in range(times):
        for row in zip(OUTPUTS, REFERENCES, strict=True):
            scorer.add(*row)
    return scorer.scores()


def of_corpus(outputs, references):
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score, abs=1e-9),
    }


def test_scores_are_those_of_the_whole_corpus():
    assert scored(Quality()) == of_corpus(OUTPUTS, REFERENCES)
    assert scored(Quality())["bleu"] > 20


ODD = ["", " ", "x", "\u2028", "e\u0301", "👩‍👧", "...", "a\tb", "ab", "Größe &quot;", "one two"]


def test_scores_of_odd_texts():
    for output, reference in itertools.product(ODD, ODD[::3]):
        quality = Quality()
        quality.add(output, reference)
        assert quality.scores() == of_corpus([output], [reference]), (output, reference)
        quality.add(*reversed(ODD[-2:]))
        both = [output, ODD[-1]], [reference, ODD[-2]]
        assert quality.scores() == of_corpus(*both), (output, reference)


def test_a_tasks_own_metrics_get_all_rows():
    assert Quality().scores() is TaskQuality(lambda o, r: {}).scores() is None
    assert scored(TaskQuality(lambda o, r: {"same": o == OUTPUTS and r == REFERENCES})) == {
        "same": True
    }
