"""The screens: overview, worker, findings, and the small ones on top of them."""
