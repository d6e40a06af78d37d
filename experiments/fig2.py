"""Figure 2 of the paper: clustering of MNIST digits. Same as `ncp reproduce fig2`."""

from ncp.reproduce import reproduce

if __name__ == "__main__":
    reproduce("fig2")
