// Takes out of the address what the view says of an action, so that a reload does not say it again. Then asks for the same page again and
// puts its `main` in, unless nobody looks, or somebody is at a field or has marked a text. An answer that is slow is asked for less often.
(() => {
  const every = Number(document.currentScript.dataset.every);
  const address = new URL(location.href);
  if (address.searchParams.has("said")) {
    for (const name of ["said", "count"]) address.searchParams.delete(name);
    history.replaceState(null, "", address);
  }
  if (!every) return;
  const busy = () => document.hidden || document.activeElement.closest("main form, main a") || String(getSelection());
  const again = async () => {
    const begin = performance.now();
    try {
      if (!busy()) {
        const answer = await fetch(location.href, {headers: {accept: "text/html"}});
        const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
        if (answer.status === 401) return location.reload();
        if (next && !busy()) document.querySelector("main").replaceWith(document.adoptNode(next));
      }
    } catch { /* The service is away for a moment. */ }
    setTimeout(again, Math.max(every, 10 * (performance.now() - begin)));
  };
  setTimeout(again, every);
})();
