"""Studies of federated scores and of proxies."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import kendalltau

from lit_fednas.cli import main as command
from tests.scripts.conftest import SCRIPTS, load

CONFIGS = SCRIPTS.parent / "configs"
NORM = '{"class_path": "lit_fednas.supernets.GroupNorm", "init_args": {"group_size": 2}}'
SETTINGS = {
    "trainer": {"max_rounds": 1, "check_val_every_n_rounds": 100, "accelerator": "cpu"},
    "model": {"client": {"epochs": 1}, "evaluation": {"sampled": 0}},
    "data": {"client_val": 0.3, "server_val": 0},
}
METHOD = {"class_path": "lit_fednas.search.RandomSearch", "init_args": {"sample": 4}}


def test_correlations_by_hand():
    """Three architectures on two clients of one and three examples; one of six pairs of ranks is reversed."""
    right = np.array([[0.0, 3.0], [1.0, 1.0], [0.0, 1.0]])  # means over all: 0.75, 0.5, 0.25
    answers = np.stack([np.broadcast_to([1, 3], right.shape), right], 2)
    taus = load("federated_search").rank_correlations(answers, lambda sums: sums[1] / sums[0], [[0, 1], [1, 0]], [1, 2])
    assert taus[:, 1] == pytest.approx([1, 1])
    # the first client answers 0, 1, 0: one pair agrees, one disagrees, one is tied (tau-b)
    # the second answers 1, 1/3, 1/3: two pairs agree, one is tied
    assert taus[:, 0] == pytest.approx([0, 2 / np.sqrt(3 * 2)])


@pytest.mark.slow
def test_federated_search(tmp_path, capsys, monkeypatch):
    """Of twelve clients, six are in a cohort: two rounds reach all, one reaches all of the highest tier.

    A client evaluates each architecture once.
    """
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(SETTINGS))
    Path("search.yaml").write_text(yaml.safe_dump({"search": {"evaluations": 8, "method": METHOD}}))
    assert command(["fit", "--config", str(CONFIGS / "fedoras/digits.yaml"), "--config", "small.yaml"]) == 0
    run = "runs/fedoras-digits/version_0"
    study = load("federated_search")
    seen = []
    base = study.Remembering.__mro__[1]
    plain = base.answers

    def watched(self, arch, clients):
        seen.extend((arch, client) for client in clients)
        return plain(self, arch, clients)

    monkeypatch.setattr(base, "answers", watched)
    words = [run, "--config", "search.yaml", "--archs", "6", "--repeats", "3", "--output", "again"]
    assert study.main(words) == 0, capsys.readouterr().err
    assert len(seen) == len(set(seen)) > 100
    ranking, totals = (pd.read_csv(f"again/{name}.csv") for name in ("ranking", "communication"))
    last = ranking.groupby("tier").last()
    assert last[["evaluation_rounds", "clients"]].to_numpy().tolist() == [[2, 12], [2, 8], [1, 4]]
    np.testing.assert_allclose(last[["tau_least", "tau_std"]], [[1, 0]] * 3, atol=1e-9)
    assert ranking["tau_least"][0] < 1
    for row in totals.to_dict("records"):
        rounds = pd.read_csv(f"again/rounds_{row['evaluation_rounds']}/federated.csv")
        own_rows = rounds[rounds["tier"] == row["tier"]]
        assert [row["bytes_down"], row["macs"]] == own_rows[["bytes_down", "macs"]].sum().tolist()


def test_ranks_among_networks_of_like_costs():
    """Over all pairs, tau is SciPy's; two of three pairs of similar costs agree."""
    scores, accuracies = np.array([1.0, 2, 4, 3, 3]), np.array([0.1, 0.3, 0.2, 0.4, 0.4])
    macs = np.array([100.0, 109, 109, 120, 300])
    tau, near_tau = load("proxies").near_tau(scores, accuracies, macs)
    assert tau == pytest.approx(kendalltau(scores, accuracies).statistic)
    assert near_tau == pytest.approx((2 - 1) / 3)  # 100 and 109 twice; 109 and 109; 120 is more than a tenth above
    everywhere = load("proxies").near_tau(scores, accuracies, np.ones(5))
    assert everywhere == pytest.approx((tau, tau))
