"""Numbers to judgement: findings."""
