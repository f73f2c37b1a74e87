"""The order in which waiting Reqs are considered.

A policy is a small object with two methods: `sort_key` files a Req in the queue's index, and
`candidates` walks that index. Admission takes the candidates one by one until something does not
fit, so a policy costs what it looks at and never the length of the queue.

    fcfs       order of arrival
    priority   higher priority first, then order of arrival
    lpm        of the oldest few, the longest cached prefix first
    dfs        depth first over the tree that the waiting prompts form
    sweep      dfs within a priority, and every so often the one that has waited longest (default)
    fair       sweep within the tenant that has been served least
"""

from radixserve.core.policies.names import POLICIES, make_policy
from radixserve.core.policies.protocol import QueuePolicy, QueueView

__all__ = ["POLICIES", "QueuePolicy", "QueueView", "make_policy"]
