"""Asking models: our own words for it, the policy of retries, and one provider per vendor."""
