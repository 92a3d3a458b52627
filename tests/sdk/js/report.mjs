// What `node --test` prints here: failures in full, what does not work yet by name, and a summary.

/** @param {AsyncIterable<{type: string, data: any}>} source */
export default async function* report(source) {
  const counts = { passed: 0, failed: 0, 'not yet': 0, 'works already': 0 };
  const early = [];
  for await (const { type, data } of source) {
    if (type === 'test:stdout' || type === 'test:stderr') yield data.message;
    if (!['test:pass', 'test:fail'].includes(type) || data.details?.type === 'suite' || data.name.endsWith('.mjs'))
      continue;
    const passed = type === 'test:pass';
    if (data.todo !== undefined) {
      counts[passed ? 'works already' : 'not yet'] += 1;
      if (passed) early.push(data.name);
      continue;
    }
    counts[passed ? 'passed' : 'failed'] += 1;
    const cause = data.details?.error?.cause ?? data.details?.error;
    if (!passed) yield `FAILED ${data.name}\n${cause?.stack ?? cause}\n\n`;
  }
  yield early.map((name) => `WORKS ALREADY ${name}: change its rows in docs/e2b-compat.md\n`).join('');
  yield `${Object.entries(counts)
    .map(([what, count]) => `${count} ${what}`)
    .join(', ')}\n`;
}
