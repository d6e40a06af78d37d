# %% [markdown]
# # Images: MNIST
# Cluster handwritten digits that the network has never seen, say that three of them are the same
# digit, and look again. `ncp data mnist` finds the images on disk or fetches them once.

# %%
import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

import ncp
from ncp.generative.mnist import attach_arrays

model = ncp.load("mnist")

# %% [markdown]
# Thirty test images, of as many digits as the prior says.

# %%
try:
    attach_arrays(model.mixture, "test")
    batch = model.mixture.sample(1, 30, generator=torch.Generator().manual_seed(3))
    images, truth = batch.x[0].numpy(), batch.labels[0].numpy()
except OSError as error:  # no images on disk and no way to get them
    print(f"without MNIST, noise has to do: {error}")
    images, truth = np.random.default_rng(0).random((30, 28, 28)), np.zeros(30, dtype=int)

found = ncp.cluster(images, model=model, n_samples=200, seed=0)
print(found)
print(f"ARI {adjusted_rand_score(truth, found.labels):.3f}")

# %% [markdown]
# "These three are the same digit": known beforehand, whatever the network thinks of them.

# %%
same = np.flatnonzero(truth == truth[0])[:3].tolist()
told = found.given(together=[same], at_any_price=True)
print(told.words()[-1])
assert len({int(told.labels[i]) for i in same}) == 1
