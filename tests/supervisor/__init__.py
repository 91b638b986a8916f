"""The supervisor of real routers."""
