"""A headless Chromium for tests of Airflow's pages: waits for conditions, keeps screenshots.

Below: what a person does with those pages.
"""

import contextlib
import os
import shutil
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SECONDS = 90.0
"""Only to notice that something does not come."""
_PASSING = (StaleElementReferenceException, ElementClickInterceptedException)


class Browser:
    """A page, and what a person does with it.

    Args:
        pictures: directory for screenshots.
        profile: directory for the browser's own files.
    """

    def __init__(self, pictures: Path, profile: Path) -> None:
        self.pictures = pictures
        pictures.mkdir(parents=True, exist_ok=True)
        options = ChromeOptions()
        for word in (
            "--headless=new",
            "--no-sandbox",  # tests may run as root
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-proxy-server",
            "--lang=en-US",
            "--window-size=1440,1000",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(word)
        options.binary_location = shutil.which("chromium")
        # Its own libraries would phone a server to look for a driver.
        os.environ["SE_OFFLINE"] = "true"
        self.driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def quit(self) -> None:
        """End the browser."""
        self.driver.quit()

    def open(self, url: str) -> None:
        """Go to a page."""
        self.driver.get(url)

    def until(self, condition, what: str, seconds: float = SECONDS):
        """The first true value of `condition()`; what changes under our hands is asked again."""

        def holds(_driver):
            with contextlib.suppress(*_PASSING):
                return condition()
            return None

        try:
            return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(holds)
        except WebDriverException as error:
            with contextlib.suppress(WebDriverException):
                self.picture("failure")
            text = self.text()[:3000]
            raise AssertionError(f"no {what} at {self.driver.current_url}:\n{text}") from error

    def find(self, selector: str, seconds: float = SECONDS):
        """The first element that is shown, by CSS or, with a leading / or (, by XPath."""
        by = By.XPATH if selector[0] in "/(" else By.CSS_SELECTOR

        def shown():
            elements = self.driver.find_elements(by, selector)
            return next((each for each in elements if each.is_displayed()), None)

        return self.until(shown, selector, seconds)

    def click(self, selector: str) -> None:
        """Click it once it is there and nothing covers it."""

        def clicked():
            self.find(selector).click()
            return True

        self.until(clicked, f"clickable {selector}")

    def fill(self, selector: str, text: str) -> None:
        """Replace what an input holds: a short text key by key, as typed; a long one is pasted.

        The form draws all its fields anew at each key: faster than that, and keys are lost.
        """
        field = self.find(selector)

        def clicked():
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
            field.click()
            return True

        self.until(clicked, f"clickable {selector}")  # a section that unfolds may still cover it
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE)
        self.until(lambda: not field.get_attribute("value"), f"emptied {selector}")
        if len(text) > 12:
            self.driver.execute_cdp_cmd("Input.insertText", {"text": text})
        else:
            for end, key in enumerate(text, 1):
                field.send_keys(key)
                self.until(
                    lambda typed=text[:end]: field.get_attribute("value") == typed,
                    f"{text[:end]!r} in {selector}",
                )
        self.until(lambda: field.get_attribute("value") == text, f"{text!r} in {selector}")

    def text(self) -> str:
        """What the page shows."""
        with contextlib.suppress(WebDriverException):
            return self.driver.find_element(By.TAG_NAME, "body").text
        return ""

    def see(self, text: str, seconds: float = SECONDS) -> None:
        """Wait until the page shows a text."""
        self.until(lambda: text in self.text(), repr(text), seconds)

    def picture(self, name: str) -> Path:
        """Keep a screenshot."""
        path = self.pictures / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path


# -------------------------------------------------------------------------------- Airflow's pages
def field(name: str) -> str:
    """The form's field of a key of the configuration."""
    return f'input[name="element_{name}"]'


def text_area(name: str) -> str:
    """The form's field of several lines."""
    return f'textarea[name="element_{name}"]'


def log_in(browser: Browser, airflow) -> None:
    """Log in as the user admin."""
    browser.open(airflow.url)
    browser.fill("input[name=username]", "admin")
    browser.fill("input[name=password]", airflow.home.password)
    browser.click("button[type=submit]")
    browser.find("[data-testid=nav-home-link]")


def open_form(browser: Browser, airflow, dag: str) -> None:
    """A DAG's trigger form."""
    browser.open(f"{airflow.url}/dags/{dag}")
    browser.click("[data-testid=trigger-dag-button]")
    browser.find("[data-testid=trigger-dag-submit]")


def choose(browser: Browser, name: str, value: str) -> None:
    """Choose in a field that has a list."""
    browser.click(f'[id="element_{name}"]')
    browser.click(f'//*[@id="element_{name}"]//*[@role="option"][.="{value}"]')


def send(browser: Browser) -> str:
    """Send the form; the run's id."""
    browser.click("[data-testid=trigger-dag-submit]")
    browser.until(lambda: "/runs/" in browser.driver.current_url, "page of the run")
    return unquote(urlsplit(browser.driver.current_url).path.split("/runs/")[1].split("/")[0])


def task_page(airflow, dag: str, run: str, task: str, tab: str = "") -> str:
    """The URL of a task's page: its log, or another tab."""
    return f"{airflow.url}/dags/{dag}/runs/{quote(run)}/tasks/{task}" + (f"/{tab}" if tab else "")


def link_of(browser: Browser, page: str, name: str) -> str:
    """Where a task's link leads, from its page of details."""
    browser.open(page)
    return browser.find(f"//a[normalize-space()='{name}']").get_attribute("href")
