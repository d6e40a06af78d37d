"""Figure 1 of the paper: NCP against exact posteriors. Same as `ncp reproduce fig1`."""

from ncp.reproduce import reproduce

if __name__ == "__main__":
    reproduce("fig1")
