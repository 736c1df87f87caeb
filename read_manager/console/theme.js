// Before the first paint: a chosen colour scheme must not flash in later.
{
  const chosen = localStorage.getItem("myqueue-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
