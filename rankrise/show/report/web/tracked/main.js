// Read the payload and fill the page.

const payload = JSON.parse(document.getElementById("payload").textContent);
const runs = payload.runs.map((record) => new Run(record));

themeChoice();
controls(runs, payload.first);
glance(runs);
ranks();
heads();
spectra();
training(runs);
stages();
runList(runs);
document.documentElement.dataset.ready = "yes";
