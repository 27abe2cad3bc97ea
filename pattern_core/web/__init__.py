"""The world wide web, as an agent may reach it: public addresses only, bounded in every direction."""
