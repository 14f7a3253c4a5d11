// Puts a choice of versions into the sidebar where several are published. Then the folder above that of the pages has a
// versions.json, which docs/publish.py writes.
(async () => {
  if (!location.protocol.startsWith("http")) return;
  const pages = new URL(document.documentElement.dataset.content_root, location.href);
  const site = new URL("../", pages);
  const answer = await fetch(new URL("versions.json", site));
  if (!answer.ok) return;
  const { newest, versions } = await answer.json();
  const here = pages.pathname.split("/").at(-2);
  if (!versions.includes(here)) return;
  const page = location.pathname.slice(pages.pathname.length);

  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Version");
  for (const one of versions) choice.add(new Option(one, one, false, one === here));
  // The same page of the other version, or its first page if it has none of this name.
  choice.addEventListener("change", async () => {
    const other = new URL(`${choice.value}/`, site);
    const same = new URL(page, other);
    location.href = (await fetch(same, { method: "HEAD" })).ok ? same : other;
  });
  document.querySelector(".version").prepend(choice, " ");

  if (!newest || here === newest) return;
  const note = document.createElement("p");
  note.className = "other-version";
  const link = Object.assign(document.createElement("a"), { href: new URL(`${newest}/`, site), textContent: newest });
  note.append(`These pages are of ${here}. The newest release is `, link, ".");
  document.querySelector("article").prepend(note);
})();
