"""Figure 4 of the paper: Gibbs against NCP importance sampling. Same as `ncp reproduce fig4`."""

from ncp.reproduce import reproduce

if __name__ == "__main__":
    reproduce("fig4")
