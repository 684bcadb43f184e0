"""Corpus scores from rows one after another."""

import pickle

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


def test_scores_are_those_of_the_whole_corpus():
    assert scored(Quality()) == {
        "bleu": sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score,
        "chrf": sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score,
    }
    assert scored(Quality())["bleu"] > 20


def test_no_row_is_kept():
    def kept(times):
        quality = Quality()
        scored(quality, times)
        return len(pickle.dumps(quality))

    assert kept(400) < kept(4) + 100, "1,980 rows more"


def test_a_tasks_own_metrics_get_all_rows():
    assert scored(TaskQuality(lambda o, r: {"same": o == OUTPUTS and r == REFERENCES})) == {
        "same": True
    }


@pytest.mark.parametrize("scorer", [Quality(), TaskQuality(lambda o, r: {})])
def test_nothing_to_score(scorer):
    assert scorer.scores() is None
