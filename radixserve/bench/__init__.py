"""A load client for any OpenAI-compatible server, or for an engine in this process.

workload    sessions of turns; a prompt as named pieces of a length      (pure)
datasets    the shapes that are known from other clients                 (pure)
presets     w1 to w4: few-shot, chat, agent tree, no sharing             (pure)
custom      prompts from a JSON Lines file
wording     pieces as token ids or as words                              (pure)
dialogue    a session's next prompt, with the real answers in it         (pure)
arrivals    when sessions begin                                          (pure)
target      what answers; what one request gave                          (pure)
load        sends sessions to a target and times what comes back
http_target, engine_target    the two kinds of target
probe       what a server takes, and which model it has
counters    what a server counts itself: preemptions, hits               (pure but for one GET)
summary     many outcomes as a few numbers; quantiles, goodput           (pure)
table, result_file, plot      the report for people, programs, eyes
"""
