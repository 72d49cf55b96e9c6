// The slider of the run's report: how right the rest is if a share of the rows is rejected.
(() => {
  const slider = document.getElementById("reject");
  const data = document.getElementById("coverage-points");
  if (slider && data) {
    const points = JSON.parse(data.textContent);
    const out = document.getElementById("rejected");
    const percent = (value) => `${(100 * value).toFixed(1)} %`;
    const update = () => {
      const kept = 1 - slider.value / 100;
      let best = points[0];
      for (const point of points) if (Math.abs(point[0] - kept) < Math.abs(best[0] - kept)) best = point;
      out.textContent = `Reject ${percent(1 - best[0])}: the rest is right in ${percent(best[1])} of its`
        + ` rows (least confidence ${best[2].toFixed(3)})`;
    };
    slider.addEventListener("input", update);
    slider.parentElement.hidden = false;
    update();
  }
})();
