import base64, time
from tests.fixtures.airflow import browser  # noqa


def test_shots(start, token, browser):
    server = start()
    for n in range(30):
        server.ask(body={"text": "the cat " * n})
    server.ask(body=b"{")
    guarded = start("--set", f"serve.token_file={token}")

    def shot(name, url, act):
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
            browser.driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
            )
            browser.driver.execute_cdp_cmd(
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
            )
            browser.open(url)
            act()
            over = browser.driver.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth]"
            )
            h = browser.driver.execute_script("return document.documentElement.scrollHeight")
            r = browser.driver.execute_cdp_cmd(
                "Page.captureScreenshot",
                {
                    "captureBeyondViewport": True,
                    "clip": {"x": 0, "y": 0, "width": width, "height": h, "scale": 1},
                },
            )
            open(f"/tmp/p2/shots/{name}-{width}-{scheme}.png", "wb").write(
                base64.b64decode(r["data"])
            )
            print(name, width, scheme, over, browser.driver.get_log("browser"))

    def ask():
        browser.fill("#text-1", "the cat sat on the mat")
        browser.click("#ask button")
        browser.find("#predicted")

    shot("server", f"http://127.0.0.1:{server.port}/", ask)
    shot("login", f"http://127.0.0.1:{guarded.port}/", lambda: None)
