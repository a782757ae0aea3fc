const entries = [{ key: "generic_key", value: "mail" }, { key: "user", value: "7" }];
const response = await fetch(`${process.env.GATEWAY}/json`, {
  method: "POST",
  headers: { "X-RateLimit-Secret": process.env.SECRET },
  body: JSON.stringify({ domain: "site", descriptors: [{ entries }] }),
});
if (response.status !== 200 && response.status !== 429) throw new Error(await response.text());
const { overallCode, statuses } = await response.json();
console.log(overallCode, statuses[0].limitRemaining ?? 0, "left");
