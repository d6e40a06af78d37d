# %% [markdown]
# # The example tables
# Four small tables of other kinds than `iris.csv`, drawn with a fixed seed. Run this script to
# write them again.

# %%
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
rng = np.random.default_rng(7)


def numbers(centres: np.ndarray, sizes: list[int], spread: float = 1.0) -> np.ndarray:
    """Round clusters around centres (K, P)."""
    parts = [
        rng.normal(centre, spread, (n, len(centre)))
        for centre, n in zip(centres, sizes, strict=True)
    ]
    return np.concatenate(parts)


def write(name: str, frame: pd.DataFrame) -> None:
    frame.sample(frac=1, random_state=3).to_csv(HERE / name, index=False)


# %% [markdown]
# ## Numbers and categories: customers
# Three kinds of customers that differ in how they spend, what they pay with and where they live;
# `newsletter` knows nothing of it, and `customer` only names them.

# %%
kind = np.repeat([0, 1, 2], [90, 60, 40])
spend = np.exp(rng.normal(np.array([3.0, 4.6, 6.0])[kind], 0.3))
visits = rng.poisson(np.array([12, 3, 6])[kind]) + 1
pays = [["card", "cash", "invoice"][(k if rng.random() < 0.9 else rng.integers(3))] for k in kind]
city = [["Turku", "Porto", "Ghent"][(k if rng.random() < 0.8 else rng.integers(3))] for k in kind]
write(
    "customers.csv",
    pd.DataFrame(
        {
            "customer": [f"C{i:04d}" for i in rng.permutation(9000)[: len(kind)]],
            "spend": spend.round(2),
            "visits": visits,
            "pays with": pays,
            "city": city,
            "newsletter": np.where(rng.random(len(kind)) < 0.5, "yes", "no"),
        }
    ),
)

# %% [markdown]
# ## One column: waiting times
# Minutes between eruptions of a geyser, short ones and long ones.

# %%
short = rng.random(220) < 0.36
waiting = np.where(short, rng.normal(54, 5, 220), rng.normal(80, 6, 220)).round()
pd.DataFrame({"minutes": waiting.astype(int)}).to_csv(HERE / "waiting.csv", index=False)

# %% [markdown]
# ## Missing values: sensors
# Four states of a machine seen by six sensors, each of which is silent one time in ten.

# %%
state = numbers(rng.normal(0, 6, (4, 6)), [60, 50, 40, 30])
state[rng.random(state.shape) < 0.1] = np.nan
write("sensors.csv", pd.DataFrame(state.round(3), columns=[f"sensor {i + 1}" for i in range(6)]))

# %% [markdown]
# ## Many clusters: parcels
# Twenty depots on a map, with twenty to sixty parcels around each.

# %%
depots = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), -1).reshape(-1, 2) * 10
depots += rng.uniform(-2, 2, depots.shape)
parcels = numbers(depots, rng.integers(20, 61, 20).tolist(), 1.0)
write("parcels.csv", pd.DataFrame(parcels.round(2), columns=["east (km)", "north (km)"]))
