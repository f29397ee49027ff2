"""From a query to a ranking: search, fusion, reranking, similar groups."""
