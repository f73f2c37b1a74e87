"""Chat templates in the manner of three model families."""

from __future__ import annotations

from tests.kit.tiny_tokenizer import CHATML

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls %}
        {{- message.tool_calls[0].function | tojson }}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}\
{% if message['role'] == 'system' %}{{ raise_exception('Only user and assistant roles!') }}\
{% elif message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"""

FAMILIES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL}
