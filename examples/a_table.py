# %% [markdown]
# # A table
# Cluster a table, look at what was found, ask further questions, keep the result.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

import ncp

HERE = Path(__file__).parent
iris = pd.read_csv(HERE / "iris.csv").drop(columns="species")

# %% [markdown]
# One call, nothing to choose. Printed, the result says in words what was found; in a notebook it
# shows a picture, too.

# %%
found = ncp.cluster(iris, seed=0)
print(found)

# %% [markdown]
# Every row has a cluster, numbered by size, and a confidence; the index and columns are yours.

# %%
table = found.to_pandas()
print(table.sort_values("confidence").head())

# %% [markdown]
# What distinguishes the clusters, the largest difference first.

# %%
print(found.profile().groupby("cluster").head(2))

# %% [markdown]
# The samples are all there: who belongs with the first row, and with how many clusters?

# %%
together = found.probability_together(0)
print(f"{(together > 0.9).sum()} rows are with row 0 with more than 90% probability")
print(found.summary.n_clusters)

# %% [markdown]
# New rows: probabilities for each cluster, the last column is "a new cluster".

# %%
print(found.predict(iris.head(3)), found.predict_proba(iris.head(3)).round(3))

# %% [markdown]
# A report to explore and to send on, and a file to come back to.

# %%
with TemporaryDirectory() as folder:
    found.write_report(Path(folder, "iris.html"), "iris", "ncp cluster examples/iris.csv")
    found.save(Path(folder, "iris.npz"))
    again = ncp.Clustering.load(Path(folder, "iris.npz"))
    assert (again.labels == found.labels).all()
