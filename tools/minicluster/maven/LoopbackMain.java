import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;

/**
 * Runs another class's main() in a JVM where "any address" is 127.0.0.1.
 *
 * Hive 2.3's metastore listens on every interface and has no setting for it. Compiled in memory by
 * the Janino that Spark brings: there need be no JDK. Wants --add-opens java.base/java.net and
 * -Djava.net.preferIPv4Stack=true; fails, rather than listen elsewhere, where Java has no such
 * field.
 */
public class LoopbackMain {
    public static void main(String[] args) throws Exception {
        Field implField = InetAddress.class.getDeclaredField("impl");
        implField.setAccessible(true);
        Object impl = implField.get(null);
        Field any = impl.getClass().getDeclaredField("anyLocalAddress");
        any.setAccessible(true);
        any.set(impl, InetAddress.getByAddress("localhost", new byte[] {127, 0, 0, 1}));
        String[] rest = new String[args.length - 1];
        System.arraycopy(args, 1, rest, 0, rest.length);
        Method main = Class.forName(args[0]).getMethod("main", new Class[] {String[].class});
        main.invoke(null, new Object[] {rest});
    }
}
