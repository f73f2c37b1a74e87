"""Extraction: an invoice in prose becomes a typed record.

python examples/extract.py
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import radixserve as rs

TEXTS = (
    "Invoice 1203: two chairs, forty euros each. Please pay 80 EUR within a month.",
    "For the lamp we charge you 25 USD. The number of this invoice is 77.",
)


@dataclass
class Invoice:
    """What an invoice says."""

    number: int
    currency: Literal["EUR", "USD"]
    total: int


@rs.program(name="extract", max_tokens=64)
async def extract(p: rs.Prompt, text: str) -> Invoice:
    """Return the invoice in a text."""
    p.system("You extract the number, the currency and the total of invoices as JSON.")
    p.user(text)
    invoice: Invoice = await p.gen("invoice", Invoice, temperature=0, retries=2)
    return invoice


async def main() -> None:
    """Extract two invoices."""
    invoices = await extract.map(TEXTS)
    for invoice in invoices:
        print(invoice)
    print(invoices.report)


if __name__ == "__main__":
    asyncio.run(main())
