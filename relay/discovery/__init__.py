"""Finding resolvers that work: candidates, checks, the hunt through them, scores."""
