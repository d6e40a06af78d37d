"""How much of each check is done, and what its lines must reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ncp.checks.simulation import LEVEL
from ncp.generative.gaussian_family import GaussianFamily
from ncp.generative.model import GenerativeModel

__all__ = ["CheckPlan", "Targets"]


@dataclass(frozen=True)
class Targets:
    """What a line must reach to pass; `None` reports it without a verdict."""

    tv_mean: float | None = 0.005
    tv_p95: float | None = 0.02
    kl: float | None = 0.01
    ess_median: float | None = 0.85
    ari: float | None = 0.945
    calibration_error: float | None = 0.02
    level: float | None = LEVEL

    @classmethod
    def none(cls) -> Targets:
        """Report everything, judge nothing."""
        return cls(None, None, None, None, None, None, None)


@dataclass(frozen=True)
class CheckPlan:
    """How much of each check is done. `CheckPlan.of` chooses for a mixture."""

    tv_sizes: tuple[int, ...] = (10, 50, 100)
    tv_datasets: int = 1000
    kl_points: int = 8
    kl_datasets: int = 400
    ess_points: int = 50
    ess_datasets: int = 1000  # the median of 200 is 2% off, as much as goals are apart
    ess_samples: int = 2000
    permutation_points: int = 50
    permutation_datasets: int = 100
    permutation_orders: int = 16
    sbc_datasets: int = 1000
    sbc_samples: int = 200
    exact_datasets: int = 200
    geweke_chains: int = 1000
    geweke_rounds: int = 5
    geweke_points: int = 20
    ari_sizes: tuple[int, ...] = (300,)
    ari_datasets: int = 200
    ari_samples: int = 200
    agreement_sizes: tuple[int, ...] = ()
    agreement_datasets: int = 100
    nll_sizes: tuple[int, ...] = (50, 100)
    nll_datasets: int = 200
    chain_datasets: int = 60  # six easy or hard ones are half or three times as far off
    chain_points: int = 50
    chain_samples: int = 200
    targets: Targets = Targets()

    @classmethod
    def of(
        cls, mixture: GenerativeModel, *, quick: bool = False, targets: Targets | None = None
    ) -> CheckPlan:
        """The plan for a mixture: sizes and targets by what kind of model it is.

        Example:
            >>> from ncp.generative.gaussian import GaussianKnownVariance
            >>> from ncp.generative.priors import CRP
            >>> from ncp.generative.mixture import Mixture
            >>> plan = CheckPlan.of(Mixture(CRP(0.7), GaussianKnownVariance(dim=1)), quick=True)
            >>> plan.sbc_datasets, plan.targets.ess_median
            (100, 0.7)
        """
        plan = cls()
        if mixture.preprocessing is not None:  # tables, whose verdicts rest on it
            sizes = tuple(n for n in (15, 60, 250, 1000) if n <= mixture.sizes[1])
            plan = replace(plan, agreement_sizes=sizes)
        if not mixture.is_conjugate and mixture.has_density:
            plan = replace(plan, ari_sizes=(50, 100), targets=replace(plan.targets, ari=None))
        elif not mixture.is_conjugate:
            plan = replace(
                plan,
                ari_sizes=(20, 100),
                nll_sizes=(20, 100),
                permutation_points=20,
                # images of distinct digits can be told apart; tables need not be
                targets=replace(plan.targets, ari=0.99 if len(mixture.event_shape) > 1 else None),
            )
        elif isinstance(mixture, GaussianFamily):
            # parts of the family have goals of their own; over all of it there is none
            goal = replace(plan.targets, tv_mean=0.008, kl=None, ess_median=0.15, ari=None)
            plan = replace(plan, ari_sizes=(50,), ess_datasets=200, targets=goal)
        elif mixture.event_shape == (1,):
            # clusters of one dimension overlap more: fewer are found, and with more doubt
            plan = replace(plan, targets=replace(plan.targets, ess_median=0.7, ari=None))
        if targets is not None:
            plan = replace(plan, targets=targets)
        return plan.tenth() if quick else plan

    def tenth(self) -> CheckPlan:
        """A tenth of the data sets."""
        names = [name for name in vars(self) if name.endswith(("_datasets", "_chains"))]
        return replace(self, **{name: max(2, getattr(self, name) // 10) for name in names})
