"""Tables in, features out; random tables; and the warning about odd ones."""

import json

import numpy as np
import pytest
import torch

from ncp.generative.model import model_from_dict
from ncp.generative.table_merge import merge_confused
from ncp.generative.table_prior import TablePrior, draw_partition, draw_table
from ncp.generative.table_shapes import SHAPES, draw_shapes, with_background
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

    def test_one_of_something_is_said_in_the_singular(self, rng: np.random.Generator) -> None:
        x = np.column_stack((rng.normal(size=(40, 2)), np.zeros(40)))
        x[3, 0] = np.nan
        words = TabularTransform().fit(x).words
        assert "1 missing value was taken" in words
        assert "1 of 3 columns does not vary and was left out" in words

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
        assert imputed.features.shape == (40, 16)
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

    def test_constant_columns_change_nothing(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(60, 3))
        x[rng.random(x.shape) < 0.1] = np.nan
        more = np.column_stack((x, np.full((60, 3), 7.0)))
        more[5, 4] = np.nan
        plain, wide = (TabularTransform().fit(table, None, 1) for table in (x, more))
        np.testing.assert_allclose(wide.features, plain.features, atol=1e-6)
        np.testing.assert_allclose(wide.apply(more), plain.apply(x), atol=1e-6)

    def test_tiny_numbers_vary(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(60, 3))
        np.testing.assert_allclose(
            TabularTransform()(x * 1e-200), TabularTransform()(x), rtol=1e-4, atol=1e-5
        )

    @pytest.mark.parametrize("x", [[[1.0, 2.0]], [[1.0], [2.0]], np.ones((5, 3)), [1.0, 2.0, 3.0]])
    def test_tiny_and_constant_tables_give_finite_features(self, x: object) -> None:
        features = TabularTransform()(x)
        assert features.shape == (len(np.asarray(x)), 16)
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
        assert fitted.apply(x[:9]).shape == (9, 16)
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


def three_clusters(rng: np.random.Generator, n: int = 240) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.permutation(np.arange(n) % 3)
    return np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])[labels] + rng.normal(size=(n, 2)), labels


class TestCategories:
    def test_irrelevant_ones_change_nothing(self, rng: np.random.Generator) -> None:
        x, _ = three_clusters(rng)
        yes, country = rng.integers(2, size=240), rng.integers(12, size=240)
        fitted = TabularTransform().fit(
            np.column_stack((x, yes, country)), [False] * 2 + [True] * 2
        )
        np.testing.assert_allclose(fitted.features, TabularTransform()(x), atol=1e-6)
        assert "2 categories go with no other column" in fitted.words

    def test_relevant_ones_count_as_columns(self, rng: np.random.Generator) -> None:
        x, labels = three_clusters(rng)
        fitted = TabularTransform().fit(np.column_stack((x, labels)), [False, False, True])
        (category,) = fitted.encoding.categories
        assert category.weight > 0.9
        block = fitted.encoding(fitted.table)[:, 2:]
        assert block.var(0).sum() == pytest.approx(category.weight**2)

    def test_the_weight_grows_with_the_agreement(self, rng: np.random.Generator) -> None:
        x, labels = three_clusters(rng, 600)
        codes = [
            np.where(rng.random(600) < keep, labels, rng.integers(3, size=600))
            for keep in (0.5, 0.7, 0.9)
        ]
        fitted = TabularTransform().fit(np.column_stack((x, *codes)), [False] * 2 + [True] * 3)
        weights = [category.weight for category in fitted.encoding.categories]
        assert len(weights) == 3
        assert weights == sorted(weights)

    def test_clusters_of_categories_alone(self, rng: np.random.Generator) -> None:
        labels = rng.integers(2, size=300)
        flips = rng.random((300, 5)) < 0.1
        codes = np.where(flips, 1 - labels[:, None], labels[:, None])
        y = TabularTransform()(codes, [True] * 5)[:, 0]
        agrees = ((y > 0) == labels).mean()
        assert max(agrees, 1 - agrees) > 0.95

    def test_codes_are_names(self, rng: np.random.Generator) -> None:
        x, labels = three_clusters(rng)
        kinds = [False, False, True]
        names = np.array([7.0, -2.0, 100.0])[labels]
        np.testing.assert_allclose(
            TabularTransform()(np.column_stack((x, labels)), kinds),
            TabularTransform()(np.column_stack((x, names)), kinds),
            atol=1e-4,
        )

    def test_rare_levels_share_an_axis(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(400, 1))
        codes = np.where(x[:, 0] > 0, 0.0, 1.0)
        codes[:100] = np.arange(100) + 2
        fitted = TabularTransform().fit(np.column_stack((x, codes)), [False, True])
        (category,) = fitted.encoding.categories
        assert category.levels.size == 39
        assert category.frequencies.sum() == pytest.approx(1.0)
        assert np.isfinite(fitted.features).all()

    def test_a_new_level_is_the_average_of_all(self, rng: np.random.Generator) -> None:
        x, labels = three_clusters(rng)
        fitted = TabularTransform().fit(np.column_stack((x, labels)), [False, False, True])
        row = np.array([[1.0, 2.0, 99.0]])
        z = fitted.encoding(row)[0, 2:]
        np.testing.assert_allclose(z, fitted.encoding(fitted.table)[:, 2:].mean(0))
        assert np.isfinite(fitted.apply(row)).all()

    def test_kinds_must_fit_the_table(self, rng: np.random.Generator) -> None:
        with pytest.raises(ValueError, match="Expected categorical as 3 booleans"):
            TabularTransform()(rng.normal(size=(9, 3)), [True, False])


class TestMissing:
    def without(self, x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(x.shape) < share, np.nan, x)

    def test_values_come_from_similar_rows(self, rng: np.random.Generator) -> None:
        labels = rng.permutation(np.arange(300) % 3)
        x = 8.0 * np.eye(3)[labels] + rng.normal(size=(300, 3))
        holes = self.without(x, 0.2, rng)
        filled = TabularTransform().fit(holes).table
        some = ~np.isnan(holes).all(1)
        nearest = ((filled[:, None] - 8.0 * np.eye(3)) ** 2).sum(-1).argmin(1)
        assert (nearest == labels)[some].mean() > 0.95
        for j in range(3):
            assert np.isin(filled[:, j], x[:, j]).all()

    def test_a_cloud_has_no_heap_in_its_middle(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 3))
        filled = TabularTransform().fit(self.without(x, 0.3, rng)).table
        for j in range(3):
            assert np.unique(filled[:, j], return_counts=True)[1].max() <= 8
            assert 0.7 < filled[:, j].std() / x[:, j].std() < 1.3

    def test_order_and_sign_of_columns_do_not_matter(self, rng: np.random.Generator) -> None:
        holes = self.without(rng.normal(size=(200, 4)), 0.1, rng)
        there = TabularTransform().fit(holes, seed=3).table
        back = TabularTransform().fit(-holes[:, ::-1], seed=3).table
        np.testing.assert_array_equal(-back[:, ::-1], there)

    def test_seeds_show_what_is_open(self, rng: np.random.Generator) -> None:
        holes = self.without(rng.normal(size=(60, 4)), 0.2, rng)
        transform = TabularTransform()
        np.testing.assert_array_equal(transform(holes), transform(holes))
        assert not np.array_equal(transform(holes, seed=1), transform(holes))

    def test_new_rows_borrow_from_the_nearest(self, rng: np.random.Generator) -> None:
        x = two_blobs(rng, 20.0)
        x[:, 1] += np.repeat([0.0, 50.0], 100)
        fitted = TabularTransform().fit(x)
        y = fitted.apply([[20.0, np.nan], [0.0, np.nan], [np.nan, np.nan]])
        assert np.isfinite(y).all()
        near = [np.abs(fitted.features[:, 0] - value).argmin() >= 100 for value in y[:2, 0]]
        assert near == [True, False]

    def test_levels_are_lent_too(self, rng: np.random.Generator) -> None:
        x, labels = three_clusters(rng)
        table = np.column_stack((x, labels)).astype(float)
        table[::7, 2] = np.nan
        fitted = TabularTransform().fit(table, [False, False, True])
        assert (fitted.table[:, 2] == labels).mean() > 0.98

    def test_indicators_are_the_last_features(self, rng: np.random.Generator) -> None:
        x, labels = three_clusters(rng)
        table = np.column_stack((x, labels)).astype(float)
        table[5, :2] = np.nan
        transform = TabularTransform()
        features = transform(table, [False, False, True])
        assert features.shape[1] == transform.n_features == 16
        assert (features[:, -2] == np.float32(1 / 3)).all()
        assert features[5, -1] == np.float32(2 / 3)
        assert (np.delete(features[:, -1], 5) == 0).all()


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

    def test_clusters_of_a_mixture_stay_and_lost_ones_go(self, rng: np.random.Generator) -> None:
        side = np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0)), axis=-1).reshape(-1, 2)
        labels = rng.permutation(np.arange(960) % 16)
        noise = rng.normal(size=(960, 2))
        for spacing, fewest, most in ((4.0, 16, 16), (3.2, 14, 16), (1.0, 1, 4)):
            fitted = self.fit(spacing * side[labels] + noise)
            n_clusters = merge_confused(labels, fitted.closest, 0.27).max() + 1
            assert fewest <= n_clusters <= most, spacing

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

    def test_many_clusters_are_shown(self, rng: np.random.Generator) -> None:
        mixture = TabularMixture()
        k = np.array([mixture.sample_table(900, rng)[2].max() + 1 for _ in range(80)])
        assert (k > 10).mean() > 0.1
        assert k.max() > 20
        assert 0.05 < (k == 1).mean() < 0.4

    def test_every_shape_has_its_clusters(self, rng: np.random.Generator) -> None:
        for shape in SHAPES:
            for k in (shape.fewest, shape.most):
                c = rng.permutation(np.arange(200) % k)
                z, width = shape.draw(c, k, rng)
                assert z.shape in ((200, 2), (200, 3))
                assert np.isfinite(z).all()
                assert width > 0
        for n in (12, 100):
            z, c = draw_shapes(n, rng)
            assert len(z) == len(c) == n
            assert draw_shapes(n, rng, n_clusters=1)[1].max() == 0

    def test_background_rows_are_a_cluster_only_together(self, rng: np.random.Generator) -> None:
        labels = np.repeat([0, 1], 300)
        z = 0.3 * rng.normal(size=(600, 2)) + 20.0 * labels[:, None]
        few, many = with_background(z, labels, 0.01, rng), with_background(z, labels, 0.25, rng)
        assert few[1].max() == 1
        rest = many[1] == 2
        assert 0.1 < rest.mean() < 0.3
        spread = [many[0][many[1] == k].std() for k in range(3)]
        assert spread[2] > 3 * max(spread[:2])

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
        assert rebuilt.event_shape == (5 + 8,)
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
