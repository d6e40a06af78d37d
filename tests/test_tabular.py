"""Tables in, features out; random tables; and the warning about odd ones."""

import json

import numpy as np
import pytest
import torch

from ncp.generative.model import model_from_dict
from ncp.generative.table_merge import merge_confused
from ncp.generative.table_prior import TablePrior, draw_partition, draw_table
from ncp.generative.table_transform import N_CONTEXT, FittedTransform, TabularTransform
from ncp.generative.tables import TabularMixture
from ncp.partitions import is_canonical


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def two_blobs(rng: np.random.Generator, distance: float, n: int = 100) -> np.ndarray:
    x = rng.normal(size=(2 * n, 2))
    x[n:, 0] += distance
    return x


class TestTransform:
    def test_leading_axis_has_unit_scale_and_padding_is_zero(
        self, rng: np.random.Generator
    ) -> None:
        x = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3))
        y = TabularTransform()(x)
        assert y.dtype == np.float32
        assert y[:, 0].std() == pytest.approx(1.0, abs=1e-5)
        assert (np.diff(y[:, :3].std(0)) <= 0).all()
        assert (y[:, 3:8] == 0).all()
        assert (y[:, 8] == np.float32(3 / 8)).all()

    def test_power_keeps_or_equalises_the_axes(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 4))
        plain = TabularTransform(power=1.0)(x)[:, :4].std(0)
        half = TabularTransform(power=0.5)(x)[:, :4].std(0)
        white = TabularTransform(power=0.0)(x)[:, :4].std(0)
        np.testing.assert_allclose(half, np.sqrt(plain), rtol=1e-4)
        np.testing.assert_allclose(white, 1.0, rtol=1e-4)

    @pytest.mark.parametrize("shape", [(30, 2), (60, 12), (12, 40), (300, 5)])
    def test_order_unit_and_sign_of_columns_do_not_matter(
        self, rng: np.random.Generator, shape: tuple[int, int]
    ) -> None:
        x = np.exp(rng.normal(size=shape)) @ rng.normal(size=(shape[1], shape[1]))
        scale = np.exp(3 * rng.normal(size=shape[1])) * rng.choice((-1, 1), size=shape[1])
        other = (x * scale + rng.normal(size=shape[1]))[:, rng.permutation(shape[1])]
        np.testing.assert_allclose(TabularTransform()(other), TabularTransform()(x), atol=1e-4)

    def test_rows_may_come_in_any_order(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(50, 4))
        order = rng.permutation(50)
        transform = TabularTransform()
        np.testing.assert_allclose(transform(x[order]), transform(x)[order], atol=1e-5)

    def test_constant_columns_are_left_out_and_said(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(40, 3))
        padded = np.column_stack((np.full(40, 1e9), x, np.zeros(40)))
        fitted = TabularTransform().fit(padded)
        np.testing.assert_allclose(fitted.features, TabularTransform()(x), atol=1e-6)
        assert "2 of 5 columns do not vary" in fitted.words

    @pytest.mark.parametrize(
        ("varying", "said"),
        [(0, "no principal axis is left."), (1, "1 principal axis holds 100%"), (2, "axes hold")],
    )
    def test_axes_are_counted_in_words(
        self, rng: np.random.Generator, varying: int, said: str
    ) -> None:
        x = np.ones((20, 2))
        x[:, :varying] = rng.normal(size=(20, varying))
        assert said in TabularTransform().fit(x).words

    def test_further_rows_may_have_any_shape(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(20, 6))
        fitted = TabularTransform().fit(x)
        np.testing.assert_array_equal(fitted.apply(x.reshape(20, 2, 3)), fitted.apply(x))

    def test_missing_values_are_imputed_or_dropped_and_said(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(40, 3))
        x[3, 1] = np.nan
        x[7] = np.nan
        imputed = TabularTransform().fit(x)
        assert imputed.features.shape == (40, 14)
        assert imputed.n_missing == 4
        assert "4 missing values" in imputed.words
        dropped = TabularTransform(missing="drop").fit(x)
        assert np.flatnonzero(~dropped.rows).tolist() == [3, 7]
        np.testing.assert_allclose(dropped.features, TabularTransform()(x[dropped.rows]), atol=1e-6)
        assert "2 of 40 rows" in dropped.words

    def test_a_column_of_nothing_is_left_out(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(20, 3))
        x[:, 1] = np.nan
        features = TabularTransform()(x)
        np.testing.assert_allclose(features, TabularTransform()(x[:, [0, 2]]), atol=1e-6)

    @pytest.mark.parametrize("x", [[[1.0, 2.0]], [[1.0], [2.0]], np.ones((5, 3)), [1.0, 2.0, 3.0]])
    def test_tiny_and_constant_tables_give_finite_features(self, x: object) -> None:
        features = TabularTransform()(x)
        assert features.shape == (len(np.asarray(x)), 14)
        assert np.isfinite(features).all()

    @pytest.mark.parametrize("shape", [(50, 9), (20, 300), (1700, 1600)])
    def test_more_columns_than_axes(self, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        x = rng.normal(size=shape)
        x[:, : shape[1] // 2] += 2 * rng.normal(size=(shape[0], 1))
        fitted = TabularTransform().fit(x)
        assert fitted.coordinates.shape == (shape[0], 8)
        assert 0 < fitted.context[1] < 1
        assert np.isfinite(fitted.features).all()

    def test_further_rows_are_seen_from_the_fitted_table(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(80, 4))
        fitted = TabularTransform().fit(x)
        assert fitted.apply(x[:9]).shape == (9, 14)
        np.testing.assert_allclose(fitted.apply(x)[:, :12], fitted.features[:, :12], atol=1e-5)
        far = fitted.apply(np.full((1, 4), 50.0))
        assert far[0, 8 + N_CONTEXT] > fitted.features[:, 8 + N_CONTEXT].max()
        with pytest.raises(ValueError, match="Expected 4 columns but got 3"):
            fitted.apply(x[:, :3])

    def test_outliers_hardly_move_the_rest(self, rng: np.random.Generator) -> None:
        x = two_blobs(rng, 6.0)
        y = x.copy()
        y[0] = 1e6
        before, after = TabularTransform()(x), TabularTransform()(y)
        gap = [f[100:, 0].mean() - f[1:100, 0].mean() for f in (before, after)]
        assert abs(gap[1]) > 0.5 * abs(gap[0])

    def test_mistakes_are_named(self) -> None:
        with pytest.raises(ValueError, match="table of numbers"):
            TabularTransform()([["a", "b"]])
        with pytest.raises(ValueError, match="rows and columns"):
            TabularTransform()(np.zeros((0, 3)))
        with pytest.raises(ValueError, match="infinity"):
            TabularTransform()([[np.inf, 1.0], [0.0, 1.0]])
        with pytest.raises(ValueError, match="every row"):
            TabularTransform(missing="drop")([[np.nan, 1.0], [np.nan, 2.0]])
        for wrong in ({"dimension": 0}, {"clip": 0.5}, {"bend": 0.0}, {"missing": "guess"}):
            with pytest.raises(ValueError, match="Expected"):
                TabularTransform(**wrong)


class TestMerging:
    def fit(self, x: np.ndarray) -> FittedTransform:
        return TabularTransform().fit(x)

    @pytest.mark.parametrize(("distance", "n_clusters"), [(0.0, 1), (1.0, 1), (6.0, 2)])
    def test_blobs_merge_when_they_overlap(
        self, rng: np.random.Generator, distance: float, n_clusters: int
    ) -> None:
        fitted = self.fit(two_blobs(rng, distance))
        merged = merge_confused(np.repeat([4, 9], 100), fitted.neighbours, 0.2)
        assert np.unique(merged).size == n_clusters

    def test_limits(self, rng: np.random.Generator) -> None:
        fitted = self.fit(two_blobs(rng, 2.0))
        labels = np.repeat([0, 1], 100)
        assert merge_confused(labels, fitted.neighbours, 0.0).max() == 0
        assert merge_confused(labels, fitted.neighbours, 1.0).max() == 1

    def test_a_single_point_stays_only_when_far(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(100, 2))
        labels = np.zeros(100, dtype=np.int64)
        labels[0] = 1
        x[0] = 0.0
        assert merge_confused(labels, self.fit(x).neighbours, 0.3).max() == 0
        x[0] = 30.0
        assert merge_confused(labels, self.fit(x).neighbours, 0.3).max() == 1


class TestPrior:
    @pytest.mark.parametrize("n_points", [1, 2, 3, 10, 120])
    def test_batches(self, generator: torch.Generator, n_points: int) -> None:
        mixture = TabularMixture()
        batch = mixture.sample(25, n_points, generator=generator)
        assert batch.x.shape == (25, n_points, *mixture.event_shape)
        assert batch.x.dtype == torch.float32
        assert batch.parameters is None
        assert bool(torch.isfinite(batch.x).all())
        assert bool(is_canonical(batch.labels).all())

    def test_same_seed_same_tables(self, seed: int) -> None:
        mixture = TabularMixture(sizes=(10, 40))
        draws = [
            mixture.sample(4, generator=torch.Generator().manual_seed(s))
            for s in (seed, seed, seed + 1)
        ]
        assert torch.equal(draws[0].x, draws[1].x)
        assert torch.equal(draws[0].labels, draws[1].labels)
        assert draws[0].x.shape != draws[2].x.shape or not torch.equal(draws[0].x, draws[2].x)
        assert 10 <= draws[0].x.shape[1] <= 40

    def test_features_are_those_of_the_table(self, rng: np.random.Generator) -> None:
        mixture = TabularMixture(tables=TablePrior(missing=0.0))
        table, fitted, labels = mixture.sample_table(60, rng)
        again = mixture.transform(table.x, table.categorical)
        np.testing.assert_array_equal(again, fitted.features)
        assert len(labels) == len(table.x) == 60

    def test_the_family_is_rich(self, rng: np.random.Generator) -> None:
        mixture = TabularMixture()
        drawn = [mixture.sample_table(150, rng) for _ in range(250)]
        n_clusters = np.array([labels.max() + 1 for _, _, labels in drawn])
        n_columns = np.array([table.x.shape[1] for table, _, _ in drawn])
        assert 0.05 < (n_clusters == 1).mean() < 0.35
        assert (n_clusters >= 6).mean() > 0.1
        assert n_clusters.max() >= 9
        assert n_columns.min() == 1
        assert n_columns.max() > 25

    def test_partitions_are_exchangeable(self, rng: np.random.Generator) -> None:
        # P(c_0 = c_1) = P(c_0 = c_last), within four standard errors of the paired difference
        drawn = np.stack([draw_partition(TablePrior(), 30, rng) for _ in range(3000)])
        difference = (drawn[:, 0] == drawn[:, 1]) * 1.0 - (drawn[:, 0] == drawn[:, -1])
        assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference))

    def test_every_knob_at_its_end(self, rng: np.random.Generator) -> None:
        for share in (0.0, 1.0):
            for curved, blobs in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0)):
                prior = TablePrior(
                    single=0.0,
                    curved=curved,
                    blobs=blobs,
                    composite=share,
                    realistic=share,
                    outliers=share,
                    background=share,
                    categorical=share,
                    missing=share,
                )
                for n in (4, 25, 80):
                    for _ in range(20):
                        table = draw_table(prior, n, rng)
                        assert np.isfinite(table.x).all() == (not np.isnan(table.x).any())
                        assert len(table.x) == table.labels.size == n
                        assert table.categorical.shape == (table.x.shape[1],)
                        assert share or not (table.categorical.any() or np.isnan(table.x).any())
        assert draw_partition(TablePrior(single=1.0), 50, rng).max() == 0

    def test_the_spec_is_plain_and_complete(self) -> None:
        mixture = TabularMixture(
            sizes=(5, 60),
            tables=TablePrior(curved=0.3, separation=(1.0, 2.0)),
            transform=TabularTransform(dimension=5),
            overlap=(0.1, 0.2),
        ).with_reference(20)
        spec = json.loads(json.dumps(mixture.to_dict()))
        rebuilt = model_from_dict(spec)
        assert rebuilt == mixture
        assert rebuilt.event_shape == (5 + 6,)
        with pytest.raises(ValueError, match="Expected the arguments of TabularMixture"):
            model_from_dict(spec | {"colour": "blue"})
        with pytest.raises(ValueError, match="Expected the arguments of TabularMixture"):
            model_from_dict({"kind": "TabularMixture", "tables": {"colour": "blue"}})
        assert model_from_dict({"kind": "TabularMixture"}) == TabularMixture()

    def test_what_needs_a_density_is_refused(self, generator: torch.Generator) -> None:
        mixture = TabularMixture()
        assert not mixture.is_conjugate
        assert not mixture.has_density
        batch = mixture.sample(2, 12, generator=generator)
        with pytest.raises(ValueError, match="conjugate"):
            mixture.log_joint(batch.x[0], batch.labels[0])
        with pytest.raises(ValueError, match="can only be sampled"):
            mixture.given(batch.hyperparameters)
        with pytest.raises(ValueError, match="share_partition=False"):
            mixture.sample(2, 12, share_partition=True)


@pytest.fixture(scope="module")
def mixture() -> TabularMixture:
    return TabularMixture(sizes=(10, 200)).with_reference(150)


class TestUnusualness:
    def test_tables_of_the_prior_are_rarely_odd(
        self, mixture: TabularMixture, rng: np.random.Generator
    ) -> None:
        tables = [mixture.sample_table(int(rng.integers(10, 200)), rng)[1] for _ in range(150)]
        p = np.array([mixture.unusualness(table).p_value for table in tables])
        # 150 draws judged by a reference of 150: both have a standard error of about 0.035
        assert (p < 0.2).mean() == pytest.approx(0.2, abs=0.2)
        assert p.mean() == pytest.approx(0.5, abs=0.15)

    def test_a_usual_table_is_called_usual(
        self, mixture: TabularMixture, rng: np.random.Generator
    ) -> None:
        said = mixture.unusualness(two_blobs(rng, 5.0))
        assert said.p_value > 0.05
        assert "looks like" in said.words

    def test_cauchy_rows_have_heavy_tails(
        self, mixture: TabularMixture, rng: np.random.Generator
    ) -> None:
        said = mixture.unusualness(rng.standard_cauchy(size=(150, 6)) ** 3)
        assert said.p_value < 0.05
        assert "tails are heavy" in said.words or "far out" in said.words

    def test_coinciding_rows_are_noticed(
        self, mixture: TabularMixture, rng: np.random.Generator
    ) -> None:
        said = mixture.unusualness(rng.normal(size=(2, 3))[rng.integers(2, size=150)])
        assert "coincide" in said.words

    def test_without_a_stored_reference_one_is_drawn(self, rng: np.random.Generator) -> None:
        said = TabularMixture(sizes=(5, 40)).unusualness(two_blobs(rng, 5.0, n=20))
        assert 0.0 <= said.p_value <= 1.0

    def test_tiny_tables_are_not_judged(self, mixture: TabularMixture) -> None:
        assert mixture.unusualness([[1.0, 2.0]]).p_value == 1.0
