"""Figure 3 of the paper: training curves. Same as `ncp reproduce fig3`."""

from ncp.reproduce import reproduce

if __name__ == "__main__":
    reproduce("fig3")
