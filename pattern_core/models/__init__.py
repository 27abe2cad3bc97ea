"""Model calls: vendor-neutral requests and replies, the retry policy, and one provider per vendor."""
