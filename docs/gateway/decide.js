const answer = await fetch(`${process.env.GATEWAY}/decide`, {
  method: "POST",
  headers: { Authorization: `Bearer ${process.env.TOKEN}` },
  body: JSON.stringify({ charges: [{ limit: "mail", identity: "ada@example.org" }] }),
});
if (!answer.ok) throw new Error((await answer.json()).detail);
const { allowed, decisions } = await answer.json();
console.log(allowed ? `${decisions[0].remaining} left` : `again in ${decisions[0].retry_after} s`);
