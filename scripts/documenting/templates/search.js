// Finds the sections and names that contain every word, those with words in their titles first, then by how often.
const field = document.getElementById("search"), list = document.getElementById("found");
field.hidden = false;
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = !words.length ? [] : entries
    .map(([title, link, text]) => {
      const name = title.toLowerCase(), lower = text.toLowerCase();
      if (!words.every((word) => name.includes(word) || lower.includes(word))) return null;
      const ranks = words.map((word) => 10 * name.includes(word) + Math.min(5, lower.split(word).length - 1));
      const at = words.map((word) => lower.indexOf(word)).filter((at) => at >= 0);
      return { title, link, text, rank: ranks.reduce((a, b) => a + b), at: at.length ? Math.min(...at) : 0 };
    })
    .filter(Boolean).sort((a, b) => b.rank - a.rank).slice(0, 30);
  list.replaceChildren(...found.map(({ title, link, text, at }) => {
    const item = document.createElement("li"), target = document.createElement("a"), part = document.createElement("span");
    const begin = at < 60 ? 0 : text.lastIndexOf(" ", at - 40) + 1, end = text.indexOf(" ", begin + 180);
    target.href = link;
    target.textContent = title;
    part.textContent = (begin ? "… " : "") + (end < 0 ? text.slice(begin) : text.slice(begin, end) + " …");
    item.append(target, part);
    return item;
  }));
  if (words.length && !found.length) list.textContent = "Nothing found.";
});
