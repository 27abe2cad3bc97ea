"""What arrives by itself, from data sources and from people in their chat applications, and the answers to them."""
