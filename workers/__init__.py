"""The data path: worker processes that carry queries from clients to resolvers and back."""
