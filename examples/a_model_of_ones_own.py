# %% [markdown]
# # A model of one's own
# Write a program that draws data like yours; train a network on it; cluster. Here: points
# scattered along straight sticks, such as tracks on a detector.

# %%
import os
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

import ncp

STEPS = int(os.environ.get("NCP_EXAMPLE_STEPS", "600"))  # fewer in the tests
SETS = int(os.environ.get("NCP_EXAMPLE_SETS", "50"))


# %% [markdown]
# A likelihood draws the parameters of a cluster, and points given them. That is all it needs.


# %%
@dataclass(frozen=True)
class Sticks(ncp.Likelihood):
    length: float = 4.0
    noise_sd: float = 0.3
    event_shape = (2,)  # the shape of one point
    scale = 10.0  # what the network divides the points by

    def sample_parameters(self, shape, generator=None):
        centre = 10.0 * torch.randn(*shape, 2, generator=generator).double()
        angle = torch.pi * torch.rand(*shape, 1, generator=generator).double()
        half = 0.5 * self.length * torch.cat([angle.cos(), angle.sin()], -1)
        return torch.cat([centre, half], -1)  # (*shape, 4)

    def sample_observations(self, parameters, labels, generator=None):
        stick = parameters.gather(1, labels[..., None].expand(-1, -1, 4))  # (B, N, 4)
        along = 2 * torch.rand(*labels.shape, 1, generator=generator).double() - 1
        noise = torch.randn(*labels.shape, 2, generator=generator).double()
        return stick[..., :2] + along * stick[..., 2:] + self.noise_sd * noise


# %% [markdown]
# Train. On the command line: `ncp train --generative sticks.py:Sticks`, and then
# `ncp cluster data.csv --model runs/sticks/sticks.safetensors --plugin sticks.py`.

# %%
if __name__ == "__main__":
    sticks = ncp.Mixture(ncp.CRP(alpha=0.7), Sticks(), sizes=(5, 100))
    recipe = ncp.Recipe.starter("sticks", sticks, steps=STEPS)
    with TemporaryDirectory() as folder:
        begin = time.process_time()
        ncp.train(recipe, folder, progress=False)
        print(f"trained in {time.process_time() - begin:.0f} s of one core")
        model = ncp.load(Path(folder, "sticks.safetensors"))

    # %% [markdown]
    # New data sets, beside the truth.

    # %%
    truth = sticks.sample(SETS, 60, generator=torch.Generator().manual_seed(1))
    found = [ncp.cluster(x.numpy(), model=model, n_samples=100, seed=0) for x in truth.x]
    scores = [adjusted_rand_score(c, f.labels) for c, f in zip(truth.labels, found, strict=True)]
    print(f"mean ARI {np.mean(scores):.3f}")
    print(found[0])
