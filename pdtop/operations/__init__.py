"""The only code that changes a cluster: every change is planned, guarded, confirmed, verified, audited."""
